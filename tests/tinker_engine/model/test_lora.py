import math

import pytest
import torch
from torch import Tensor

from tests.tinker_engine.families import make_decoder, make_reference
from tinker_engine.errors import InputError
from tinker_engine.model.linear import FrozenLinear, LoraPair, LoraRows, apply_linear, apply_swiglu_linear
from tinker_engine.model.lora import Adapter, LoraSpec, parameter_count
from tinker_engine.model.spec import ModelSpec, RopeSpec

CPU = torch.device("cpu")


def dense(
    hidden: int,
    inner: int,
    layers: int,
    heads: int,
    kv_heads: int,
    vocabulary: int,
    head_dim: int | None = None,
) -> ModelSpec:
    return ModelSpec(
        architecture="LlamaForCausalLM",
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim or hidden // heads,
        intermediate_size=inner,
        max_context=8192,
        rope=RopeSpec(),
        norm_eps=1e-5,
        tied_embeddings=False,
    )


# The published tables of LoRA parameters per rank: (mlp, attention, unembedding).
PER_RANK = {
    "Llama-3.1-8B": (dense(4096, 14336, 32, 32, 8, 128_256), (1_769_472, 851_968, 132_352)),
    "Llama-3.2-1B": (dense(2048, 8192, 16, 32, 8, 128_256), (491_520, 212_992, 130_304)),
    "Llama-3.2-3B": (dense(3072, 8192, 28, 24, 8, 128_256), (946_176, 573_440, 131_328)),
    "Llama-3.1-70B": (dense(8192, 28672, 80, 64, 8, 128_256), (8_847_360, 4_096_000, 136_448)),
    "Qwen3-8B": (dense(4096, 12288, 36, 32, 8, 151_936), (1_769_472, 958_464, 156_032)),
    "Qwen3-4B": (dense(2560, 9728, 36, 32, 8, 151_936, 128), (1_327_104, 737_280, 154_496)),
    "Qwen3-32B": (dense(5120, 25600, 64, 64, 8, 151_936, 128), (5_898_240, 2_490_368, 157_056)),
}


@pytest.mark.parametrize("model", PER_RANK)
def test_parameter_counts_equal_the_published_table(model: str) -> None:
    spec, (mlp, attn, unembed) = PER_RANK[model]
    for rank in (1, 32):
        count = parameter_count(spec, LoraSpec(rank))
        assert count == rank * (mlp + attn + unembed)
    assert parameter_count(spec, LoraSpec(1, train_attn=False, train_unembed=False)) == mlp
    assert parameter_count(spec, LoraSpec(1, train_mlp=False, train_unembed=False)) == attn
    assert parameter_count(spec, LoraSpec(1, train_attn=False, train_mlp=False)) == unembed


def test_initial_weights_are_seeded_and_leave_the_model_unchanged() -> None:
    spec = make_decoder(make_reference("llama")).spec
    one, again, other = (Adapter.initialised(spec, LoraSpec(8, seed=seed), device=CPU) for seed in (5, 5, 6))
    assert torch.equal(one.flat, again.flat)
    assert not torch.equal(one.flat, other.flat)
    for _, a_RK, b_NR in one.target_weights():
        bound = 1 / math.sqrt(a_RK.shape[1])
        assert a_RK.abs().max() <= bound
        assert a_RK.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.15)
        assert not b_NR.any()


def test_unseeded_adapters_differ() -> None:
    spec = make_decoder(make_reference("llama")).spec
    first, second = (Adapter.initialised(spec, LoraSpec(2), device=CPU) for _ in range(2))
    assert not torch.equal(first.flat, second.flat)


@pytest.mark.parametrize(
    ("lora", "field"),
    [
        (LoraSpec(0), "rank"),
        (LoraSpec(-3), "rank"),
        (LoraSpec(4, train_attn=False, train_mlp=False, train_unembed=False), "lora_config"),
    ],
)
def test_an_adapter_that_trains_nothing_is_refused(lora: LoraSpec, field: str) -> None:
    with pytest.raises(InputError) as error:
        Adapter(make_decoder(make_reference("llama")).spec, lora, device=CPU)
    assert error.value.field == field


def test_a_snapshot_is_independent() -> None:
    adapter = Adapter.initialised(make_decoder(make_reference("llama")).spec, LoraSpec(2, seed=0), device=CPU)
    snapshot = adapter.snapshot()
    adapter.flat.add_(1)
    assert not torch.equal(snapshot.flat, adapter.flat)
    assert snapshot.frozen
    assert not adapter.frozen


# --- the autograd functions ---------------------------------------------------------------------

COLUMNS = ((0, 5), (5, 12))


def layer(dtype: torch.dtype, rows: int = 9, width: int = 6) -> tuple[Tensor, FrozenLinear, list[Tensor]]:
    torch.manual_seed(0)
    x = torch.randn(rows, width, dtype=dtype, requires_grad=True)
    frozen = FrozenLinear(torch.randn(12, width, dtype=dtype), torch.randn(12, dtype=dtype))
    weights = [
        torch.randn(shape, dtype=dtype, requires_grad=True)
        for shape in ((6, width), (12, 3), (2, width), (12, 1))  # two adapters, ranks 3 and 1
    ]
    return x, frozen, weights


def updates(weights: list[Tensor]) -> list[LoraRows]:
    first, second = (
        LoraPair(weights[0], weights[1], COLUMNS, 0.7),
        LoraPair(weights[2], weights[3], COLUMNS, 1.9),
    )
    return [LoraRows(0, 4, first), LoraRows(5, 9, second)]  # row 4 has no adapter


def plain(x: Tensor, frozen: FrozenLinear, weights: list[Tensor]) -> Tensor:
    """The same in ordinary torch, for autograd."""
    y = torch.nn.functional.linear(x, frozen.weight_NK, frozen.bias_N)
    deltas = torch.zeros_like(y)
    for start, end, a, b, scale in ((0, 4, *weights[:2], 0.7), (5, 9, *weights[2:], 1.9)):
        rank = b.shape[1]
        parts = [
            scale * x[start:end] @ a[j * rank : (j + 1) * rank].T @ b[left:right].T
            for j, (left, right) in enumerate(COLUMNS)
        ]
        deltas = deltas + torch.nn.functional.pad(torch.cat(parts, 1), (0, 0, start, len(x) - end))
    return y + deltas


def gradients(output: Tensor, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    weight = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    return torch.autograd.grad((output * weight).sum(), inputs)


def test_gradients_equal_plain_autograd() -> None:
    x, frozen, weights = layer(torch.float32)
    own, expected = apply_linear(x, frozen, updates(weights)), plain(x, frozen, weights)
    torch.testing.assert_close(own, expected, atol=1e-5, rtol=1e-5)
    for grad, wanted in zip(gradients(own, [x, *weights]), gradients(expected, [x, *weights]), strict=True):
        torch.testing.assert_close(grad, wanted, atol=1e-5, rtol=1e-5)


def test_gradients_equal_plain_autograd_through_swiglu() -> None:
    gate_up, frozen, weights = layer(torch.float32, width=6)
    gate_up = torch.randn(9, 12, requires_grad=True)
    own = apply_swiglu_linear(gate_up, frozen, updates(weights))
    gate, up = gate_up.chunk(2, dim=-1)
    expected = plain(torch.nn.functional.silu(gate) * up, frozen, weights)
    inputs = [gate_up, *weights]
    for grad, wanted in zip(gradients(own, inputs), gradients(expected, inputs), strict=True):
        torch.testing.assert_close(grad, wanted, atol=1e-5, rtol=1e-5)


def test_gradients_equal_finite_differences() -> None:
    x, frozen, weights = layer(torch.float64)
    torch.autograd.gradcheck(lambda x, *w: apply_linear(x, frozen, updates(list(w))), (x, *weights))
    gate_up = torch.randn(9, 12, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(
        lambda g, *w: apply_swiglu_linear(g, frozen, updates(list(w))), (gate_up, *weights)
    )


def test_the_frozen_weight_gets_no_gradient_and_the_input_is_kept_once() -> None:
    x, frozen, weights = layer(torch.float32)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda t: t):
        apply_linear(x, frozen, updates(weights)).sum().backward()
    assert frozen.weight_NK.grad is None
    assert sum(tensor.data_ptr() == x.data_ptr() for tensor in kept) == 1
    assert sum(tensor.numel() for tensor in kept) == x.numel() + 4 * 6 + 4 * 2  # x, and x Aᵀ of each adapter
