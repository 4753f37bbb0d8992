"""The layers in one call: against the decoder in float64 without a cache, and what they promise of bits."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.tinker_engine.families import make_decoder, make_reference
from tests.tinker_engine.sampling.support import random_prompt, trained_like
from tinker_engine.model.attention import PackedAttention
from tinker_engine.model.cache import Bucket, CacheShape, Prefix
from tinker_engine.model.decoder import Decoder
from tinker_engine.model.lora import Adapter, LoraBatch
from tinker_engine.native import ops
from tinker_engine.sampling.attend import PrefillPart, RowKeys
from tinker_engine.sampling.step import Step
from tinker_engine.training.packing import pack

CPU = torch.device("cpu")

pytestmark = pytest.mark.skipif(not ops.serves(torch.float32, CPU), reason="there is no C compiler")

# Biases; norms of queries and keys; neither. Widths of more than one panel of a product, the last of them not whole.
FAMILIES = ("llama-biases", "qwen3", "smollm2")
SHAPE = {"hidden_size": 96, "intermediate_size": 208, "head_dim": 32}
PROMPTS = [random_prompt(seed, length) for seed, length in enumerate((70, 1, 230, 64))]


def decoder_with(family: str, dtype: torch.dtype = torch.float32) -> Decoder:
    return make_decoder(make_reference(family, dtype=dtype, **SHAPE))


def adapters_for(decoder: Decoder) -> list[Adapter | None]:
    """Of each prompt: two neighbours with one adapter, one with another rank, one with none."""
    one, other = (trained_like(decoder, seed, rank=rank).snapshot() for seed, rank in ((1, 3), (2, 20)))
    return [one, one, None, other]


def exact(family: str, tokens: list[int], adapter: Adapter | None) -> Tensor:
    """The states of all tokens, in float64 and without a cache."""
    decoder = decoder_with(family, torch.float64)
    if adapter is not None:
        wide = Adapter(adapter.model, adapter.lora, device=CPU, dtype=torch.float64)
        wide.flat.copy_(adapter.flat)
        adapter = wide
    (batch,) = pack([np.array(tokens)], 1000)
    attend = PackedAttention(batch.segments, decoder.spec.head_dim)
    lora = LoraBatch.single(adapter, len(tokens))
    with torch.no_grad():
        return decoder.hidden(batch.tokens_T, batch.positions_T, batch.longest, attend, lora)


class Run:
    """Prompts through a step, then rows that go on from them."""

    def __init__(self, decoder: Decoder):
        self.step = Step(decoder)
        assert self.step.native
        self.shape = CacheShape.of(decoder.spec, decoder.dtype, decoder.device)

    @torch.inference_mode()
    def prompts(
        self, prompts: list[list[int]], adapters: list[Adapter | None], cuts: list[int]
    ) -> tuple[list[Prefix], list[Tensor]]:
        """Prefixes and states of all tokens; computed in pieces, cut at these places of each prompt."""
        prefixes = [
            Prefix(self.shape, np.array(prompt), adapter)
            for prompt, adapter in zip(prompts, adapters, strict=True)
        ]
        for prefix in prefixes:
            prefix.kv.fill_(float("nan"))  # whatever is read before it is written shows
        states: list[list[Tensor]] = [[] for _ in prompts]
        for start, end in zip([0, *cuts], [*cuts, 1000], strict=True):
            pieces = [(i, prompt[start:end]) for i, prompt in enumerate(prompts) if prompt[start:end]]
            parts: list[PrefillPart] = []
            row = 0
            for i, piece in pieces:
                parts.append(PrefillPart(slice(row, row + len(piece)), prefixes[i], start))
                row += len(piece)
            out = self.step.of_prompts(
                torch.tensor([token for _, piece in pieces for token in piece]),
                torch.cat([torch.arange(start, start + len(piece)) for _, piece in pieces]),
                parts,
                LoraBatch.runs([(adapters[i], len(piece)) for i, piece in pieces], steady=True),
            )
            for (i, _), part in zip(pieces, parts, strict=True):
                states[i].append(out[part.rows])
        return prefixes, [torch.cat(each) for each in states]

    @torch.inference_mode()
    def rows(
        self, prefixes: list[Prefix], adapters: list[Adapter | None], new: list[list[int]], *, copied: bool
    ) -> Tensor:
        """States [steps, rows, D] of as many rows as there are prefixes, which read those or a copy."""
        bucket = Bucket(self.shape, 256)
        for prefix in prefixes:
            bucket.add(prefix.kv if copied else None, 0)
        everyone = list(range(len(prefixes)))
        readers = [] if copied else [(prefix, [i]) for i, prefix in enumerate(prefixes)]
        states: list[Tensor] = []
        for done, tokens in enumerate(zip(*new, strict=True)):
            positions = [len(prefix) + done for prefix in prefixes]
            states.append(
                self.step.of_rows(
                    torch.tensor(tokens),
                    torch.tensor(positions),
                    max(positions) + 1,
                    RowKeys([(bucket, everyone)], readers),
                    LoraBatch.runs([(adapter, 1) for adapter in adapters], steady=True),
                )
            )
            bucket.lengths = [length + 1 for length in bucket.lengths]
        return torch.stack(states)


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_and_rows_are_the_decoders(family: str):
    decoder = decoder_with(family)
    adapters, run = adapters_for(decoder), Run(decoder)
    new = [random_prompt(10 + i, 5) for i in range(len(PROMPTS))]
    prefixes, of_prompts = run.prompts(PROMPTS, adapters, [])
    of_rows = run.rows(prefixes, adapters, new, copied=False)
    for i, prompt in enumerate(PROMPTS):
        expected = exact(family, [*prompt, *new[i]], adapters[i])
        found = torch.cat((of_prompts[i], of_rows[:, i]))
        assert float((found - expected).abs().max()) < 2e-5


def each_way(run: Run, adapters: list[Adapter | None]) -> Iterator[tuple[list[Tensor], Tensor]]:
    """All together; prompts cut in pieces and copied; and each alone."""
    new = [random_prompt(10 + i, 5) for i in range(len(PROMPTS))]
    for cuts, copied in (([], False), ([33, 64, 65, 192], True)):
        prefixes, states = run.prompts(PROMPTS, adapters, cuts)
        yield states, run.rows(prefixes, adapters, new, copied=copied)
    alone = [run.prompts([prompt], [adapter], []) for prompt, adapter in zip(PROMPTS, adapters, strict=True)]
    rows = [
        run.rows(prefixes, [adapter], [tokens], copied=False)
        for (prefixes, _), adapter, tokens in zip(alone, adapters, new, strict=True)
    ]
    yield [states for _, (states,) in alone], torch.cat(rows, dim=1)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_bits_in_any_company_in_pieces_and_of_copies(threads: int):
    decoder = decoder_with("qwen3")
    adapters, before = adapters_for(decoder), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        (prompts, rows), *others = each_way(Run(decoder), adapters)
    finally:
        torch.set_num_threads(before)
    for other_prompts, other_rows in others:
        assert all(torch.equal(one, other) for one, other in zip(prompts, other_prompts, strict=True))
        assert torch.equal(rows, other_rows)


def test_what_is_not_a_number_stays_in_its_row():
    decoder = decoder_with("smollm2")
    adapters, run = adapters_for(decoder), Run(decoder)
    prefixes, _ = run.prompts(PROMPTS, adapters, [])
    with torch.inference_mode():
        prefixes[0].kv[0, 0, 0, 3] = float("nan")
    rows = run.rows(prefixes, adapters, [[1], [2], [3], [4]], copied=False)
    assert rows.isnan().any(dim=2).tolist() == [[True, False, False, False]]


def test_a_model_of_other_widths_is_torchs():
    assert not Step(make_decoder(make_reference("llama"))).native
    assert not Step(decoder_with("llama", torch.float64)).native
