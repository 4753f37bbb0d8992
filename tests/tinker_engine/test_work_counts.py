"""How much is computed, counted and not timed: products with the frozen weights, rows of a step, blocks of memory.

A change that makes the engine compute a prompt twice, decode rows that have ended, or make logits that nobody asked
for fails here on any machine, however fast.
"""

from typing import Any

import numpy as np
import pytest
from torch import Tensor

from tests.tinker_engine.sampling.conftest import MakeSampler, byte_level, make_sampler, tokenizer
from tests.tinker_engine.sampling.support import FAMILY, adapter_of, decoder_of, make_request, random_prompt
from tests.tinker_engine.training.conftest import policy_data, random_run
from tinker_engine.model.decoder import Decoder
from tinker_engine.model.linear import FrozenLinear
from tinker_engine.sampling.step import AllLayers
from tinker_engine.training import head
from tinker_engine.training.trainer import Trainer
from tinker_engine.training.types import Datum

__all__ = ["byte_level", "make_sampler", "tokenizer"]  # fixtures of the sampler's tests

COMMON = random_prompt(0, 40)
GROUPS, GROUP, NEW = 3, 4, 10
PROMPTS = [[*COMMON, *random_prompt(1 + group, 20)] for group in range(GROUPS)]


def linears_of(decoder: Decoder) -> list[FrozenLinear]:
    return [x for each in decoder.layers for x in (each.qkv, each.output, each.gate_up, each.down)]


class Rows:
    """Rows of every product with a frozen weight, forwards and backwards."""

    def __init__(self) -> None:
        self.forward: dict[int, list[int]] = {}
        self.backward: dict[int, list[int]] = {}

    def of_layers(self, decoder: Decoder) -> tuple[int, int]:
        """Forwards and backwards; all linear layers of all layers must agree on each."""
        frozen = linears_of(decoder)
        forward = {sum(self.forward.get(id(linear), [])) for linear in frozen}
        # The first layer's input gets no gradient.
        backward = {sum(self.backward.get(id(linear), [])) for linear in frozen[1:]}
        assert (len(forward), len(backward)) == (1, 1)
        return forward.pop(), backward.pop()

    def of_head(self, decoder: Decoder) -> tuple[int, int]:
        key = id(decoder.head)
        return sum(self.forward.get(key, [])), sum(self.backward.get(key, []))


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Rows:
    counted = Rows()
    forward, backward, in_one = FrozenLinear.__call__, FrozenLinear.input_grad, AllLayers.__call__

    def call(self: FrozenLinear, x_TK: Tensor) -> Tensor:
        counted.forward.setdefault(id(self), []).append(len(x_TK))
        return forward(self, x_TK)

    def input_grad(self: FrozenLinear, dy_TN: Tensor) -> Tensor:
        counted.backward.setdefault(id(self), []).append(len(dy_TN))
        return backward(self, dy_TN)

    def all_layers(self: AllLayers, tokens_T: Tensor, *rest: Any, **more: Any) -> Tensor:
        for linear in linears_of(self.decoder):
            counted.forward.setdefault(id(linear), []).append(len(tokens_T))
        return in_one(self, tokens_T, *rest, **more)

    monkeypatch.setattr(AllLayers, "__call__", all_layers)
    monkeypatch.setattr(FrozenLinear, "__call__", call)
    monkeypatch.setattr(FrozenLinear, "input_grad", input_grad)
    return counted


def test_sampling_computes_each_beginning_once_and_no_row_that_has_ended(
    rows: Rows, make_sampler: MakeSampler
):
    sampler, decoder = make_sampler(), decoder_of(FAMILY)
    requests = [
        make_request(prompt, NEW, seed, num_samples=GROUP, adapter=adapter_of(FAMILY, 1))
        for seed, prompt in enumerate(PROMPTS)
    ]
    sampler.sample(requests)
    prompts = 60 + 2 * 20  # what they have in common once
    decoded = GROUPS * GROUP * (NEW - 1)  # the first token of each comes from its prompt
    assert rows.of_layers(decoder) == (prompts + decoded, 0)
    assert rows.of_head(decoder) == (GROUPS + decoded, 0)
    assert (sampler.prompt_tokens, sampler.row_steps) == (prompts, decoded)


def test_a_step_has_all_rows_there_are(make_sampler: MakeSampler):
    sampler = make_sampler()
    lengths = [2, 3, 5, 9, 17, 33]
    sampler.sample([make_request(random_prompt(i, 9), length, i) for i, length in enumerate(lengths)])
    assert sampler.row_steps == sum(length - 1 for length in lengths)
    assert sampler.steps == max(lengths) - 1


def test_asked_again_nothing_of_the_prompts_is_computed_and_no_block_is_made(
    rows: Rows, make_sampler: MakeSampler
):
    sampler, decoder = make_sampler(), decoder_of(FAMILY)
    requests = [make_request(prompt, NEW, 1, num_samples=GROUP) for prompt in PROMPTS]
    sampler.sample(requests)
    blocks = [bucket.kv.data_ptr() for bucket in sampler.cache.buckets.values()]
    rows.forward.clear()
    sampler.sample(requests)
    assert rows.of_layers(decoder)[0] == GROUPS * GROUP * (NEW - 1)
    assert [bucket.kv.data_ptr() for bucket in sampler.cache.buckets.values()] == blocks


def groups_of_samples() -> list[Datum]:
    """Three groups whose prompts of 60 have 40 in common, with answers of seven tokens that differ at once."""
    data: list[Datum] = []
    for group, prompt in enumerate(PROMPTS):
        for member, datum in enumerate(policy_data([66] * GROUP, seed=group)):
            answer = [1 + member] * 7
            full = np.array([*prompt, *answer])
            inputs = {name: np.array(values) for name, values in datum.loss_fn_inputs.items()}
            inputs["target_tokens"] = full[1:]
            inputs["advantages"] = np.where(np.arange(66) >= 59, 1.0, 0.0).astype(np.float32)
            data.append(Datum(full[:-1], inputs))
    return data


def test_training_computes_each_beginning_once_and_no_gradient_that_is_zero(rows: Rows):
    decoder = decoder_of(FAMILY)
    trainer = Trainer(decoder)
    run = random_run(trainer)
    trainer.forward_backward(run, groups_of_samples(), "importance_sampling")
    prompts, answers = 40 + GROUPS * 20, GROUPS * GROUP * 6  # the last token of an answer predicts nothing
    assert rows.of_layers(decoder) == (prompts + answers, prompts + answers)
    # Logprobs are given of all targets, gradients only where there is an advantage: the answers, and each prompt's end.
    assert rows.of_head(decoder) == (prompts + answers, GROUPS + answers)


def test_logits_are_made_in_chunks(rows: Rows, monkeypatch: pytest.MonkeyPatch):
    decoder = decoder_of(FAMILY)
    monkeypatch.setattr(head, "CHUNK_ELEMENTS", 20 * decoder.spec.vocab_size)
    trainer = Trainer(decoder)
    trainer.forward_backward(random_run(trainer), policy_data([100, 100]), "importance_sampling")
    assert sum(rows.forward[id(decoder.head)]) == 200
    assert max(rows.forward[id(decoder.head)]) <= 20
