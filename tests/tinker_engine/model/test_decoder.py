"""The decoder against `transformers`, for every family."""

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.tinker_engine.families import FAMILIES, make_decoder, make_reference, random_shape
from tinker_engine.model.attention import PackedAttention, Segment, _sdpa
from tinker_engine.model.decoder import Attend, Decoder
from tinker_engine.model.lora import Adapter, LoraBatch, LoraSpec
from tinker_engine.training.packing import MicroBatch, pack


def sequences(lengths: list[int], vocabulary: int, seed: int = 0) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [generator.integers(0, vocabulary, length) for length in lengths]


def run(
    decoder: Decoder, batch: MicroBatch, lora: LoraBatch | None = None, attend: Attend | None = None
) -> Tensor:
    attend = attend or PackedAttention(batch.segments, decoder.spec.head_dim)
    return decoder.hidden(batch.tokens_T, batch.positions_T, batch.longest, attend, lora or LoraBatch())


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers(family: str) -> None:
    reference = make_reference(family)
    decoder = make_decoder(reference)
    tokens = torch.from_numpy(sequences([200], decoder.spec.vocab_size)[0])
    with torch.no_grad():
        expected = reference(tokens[None]).logits[0]
        (batch,) = pack([tokens.numpy()], 1000)
        logits = decoder.logits(run(decoder, batch), LoraBatch())
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["llama3-rope", "llama-biases", "qwen2.5", "qwen3", "mistral"])
@pytest.mark.parametrize("seed", range(4))
def test_logits_of_random_shapes_equal_transformers(family: str, seed: int) -> None:
    shape = random_shape(seed)
    if family == "qwen2.5":  # its heads always share the model's width
        shape["hidden_size"] = shape["num_attention_heads"] * shape.pop("head_dim")
    reference = make_reference(family, seed, **shape)
    decoder = make_decoder(reference)
    tokens = torch.from_numpy(sequences([90], decoder.spec.vocab_size)[0])
    with torch.no_grad():
        (batch,) = pack([tokens.numpy()], 1000)
        logits = decoder.logits(run(decoder, batch), LoraBatch())
        torch.testing.assert_close(logits, reference(tokens[None]).logits[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_segments_equal_separate_sequences(family: str) -> None:
    """Mixed lengths, equal lengths side by side, and a prefix that sequences share, some of them more of it."""
    reference = make_reference(family)
    decoder = make_decoder(reference)
    vocabulary = decoder.spec.vocab_size
    prefix, more, *tails = sequences([20, 18, 5, 9, 9], vocabulary, seed=1)
    data = [
        *sequences([3, 17, 17, 40], vocabulary),
        *(np.concatenate((prefix, tail)) for tail in tails),
        *(np.concatenate((prefix, more, tail)) for tail in tails),
        prefix,
    ]
    (batch,) = pack(data, 10_000)
    assert deepest(batch) == 2
    assert len(batch.tokens_T) < sum(map(len, data))
    with torch.no_grad():
        hidden = run(decoder, batch)
        for member, rows in zip(batch.members, batch.rows, strict=True):
            expected = reference(torch.from_numpy(data[member])[None]).logits[0]
            logits = decoder.logits(hidden[rows], LoraBatch())
            torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def deepest(batch: MicroBatch) -> int:
    """Most ancestors of a segment."""
    packed = PackedAttention(batch.segments, 1)
    return max(len([*packed.ancestors(segment)]) for segment in batch.segments)


LENGTHS = {  # of what all begin with, of what half go on with, and of the ends
    "copied": (20, 18, 5, 9, 9),
    "long beginnings": (300, 18, 5, 9, 9, 30, 1, 64),
    "long ends": (20, 18, 5, 70, 70, 65),
    "all long": (90, 80, 70, 70),
}


@pytest.mark.parametrize("family", ["llama3-rope", "qwen3"])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_own_attention_and_torchs_agree_in_value_and_gradient(family: str, lengths: tuple[int, ...]) -> None:
    """The path for other devices, which is torch's own attention with autograd, is the reference here."""
    decoder = make_decoder(make_reference(family, dtype=torch.float64))
    prefix, more, *tails = sequences(list(lengths), decoder.spec.vocab_size)
    data = [np.concatenate((prefix, *between, tail)) for tail in tails for between in ([], [more])]
    (batch,) = pack([*data, *sequences([11, 11, 4], decoder.spec.vocab_size)], 10_000)
    assert deepest(batch) == 2
    packed = PackedAttention(batch.segments, decoder.spec.head_dim)
    adapter = random_adapter(decoder)
    results: list[tuple[Tensor, Tensor]] = []

    def torchs(layer: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor) -> Tensor:
        return _sdpa(packed, q_THE, k_TGE, v_TGE).flatten(1)

    for attend in (packed, torchs):
        grad = torch.zeros_like(adapter.flat)
        adapter.bind_gradients(grad)
        hidden = run(decoder, batch, LoraBatch.single(adapter, len(batch.tokens_T)), attend)
        weight = torch.linspace(-1, 1, hidden.numel(), dtype=hidden.dtype).view_as(hidden)
        hidden.backward(weight)
        results.append((hidden.detach(), grad))
    torch.testing.assert_close(results[0][0], results[1][0])
    torch.testing.assert_close(results[0][1], results[1][1])


def test_recomputing_layers_changes_nothing() -> None:
    decoder = make_decoder(make_reference("llama"))
    (batch,) = pack(sequences([30, 12], decoder.spec.vocab_size), 1000)
    adapter = random_adapter(decoder)
    grads: list[Tensor] = []
    for recompute in (False, True):
        grad = torch.zeros_like(adapter.flat)
        adapter.bind_gradients(grad)
        hidden = decoder.hidden(
            batch.tokens_T,
            batch.positions_T,
            batch.longest,
            PackedAttention(batch.segments, decoder.spec.head_dim),
            LoraBatch.single(adapter, len(batch.tokens_T)),
            recompute=recompute,
        )
        hidden.sum().backward()
        grads.append(grad)
    assert torch.equal(grads[0], grads[1])
    assert grads[0].abs().max() > 0


def test_adapters_in_one_batch_equal_each_alone() -> None:
    """Different ranks and targets on one base product, and rows without any adapter."""
    decoder = make_decoder(make_reference("qwen2.5"))
    adapters = [
        random_adapter(decoder, LoraSpec(4, seed=1)),
        None,
        random_adapter(decoder, LoraSpec(9, seed=2, train_mlp=False)),
        random_adapter(decoder, LoraSpec(1, seed=3, train_attn=False, train_unembed=False)),
    ]
    data = sequences([7, 7, 7, 7], decoder.spec.vocab_size)
    segments = [Segment(7 * i, 7) for i in range(4)]
    positions = torch.arange(7).repeat(4)
    lora = LoraBatch.runs([(adapter, 7) for adapter in adapters])
    with torch.no_grad():
        tokens = torch.from_numpy(np.concatenate(data))
        together = decoder.hidden(
            tokens, positions, 7, PackedAttention(segments, decoder.spec.head_dim), lora
        )
        logits = decoder.logits(together, lora)
        for i, adapter in enumerate(adapters):
            (batch,) = pack([data[i]], 100)
            alone = LoraBatch.single(adapter, 7)
            expected = decoder.logits(run(decoder, batch, alone), alone)
            torch.testing.assert_close(logits[7 * i : 7 * i + 7], expected, atol=1e-5, rtol=1e-5)


def random_adapter(decoder: Decoder, lora: LoraSpec | None = None) -> Adapter:
    """B is random too, or half of the update would be zero."""
    adapter = Adapter.initialised(
        decoder.spec, lora or LoraSpec(4, seed=0), device=decoder.device, dtype=decoder.dtype
    )
    generator = torch.Generator().manual_seed(7)
    adapter.flat.add_(0.05 * torch.randn(adapter.flat.shape, generator=generator, dtype=adapter.flat.dtype))
    return adapter
