"""Training in pieces: calls that take turns, and pauses in which the same decoder samples."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.tinker_engine.families import make_decoder, make_reference
from tests.tinker_engine.training.conftest import policy_data, random_run, supervised
from tinker_engine.errors import InputError
from tinker_engine.model import lora
from tinker_engine.model.decoder import Decoder
from tinker_engine.model.load import LoadedModel, load_model
from tinker_engine.sampling.request import Ticket
from tinker_engine.sampling.sampler import Sampler
from tinker_engine.sampling.types import SampleRequest, SamplingParams
from tinker_engine.training import head
from tinker_engine.training.memory import activation_bytes
from tinker_engine.training.trainer import LoraRun, Steps, Trainer
from tinker_engine.training.types import AdamParams, Datum, ForwardBackwardOutput

SAME_ROOM = 1 << 30  # by default it depends on the memory that is free, and with it how the work is cut


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several micro-batches, and several chunks of the head in each."""
    monkeypatch.setattr("tinker_engine.training.memory.MOST_TOKENS", 32)
    monkeypatch.setattr(head, "CHUNK_ELEMENTS", 1)


def take_turns(*calls: Steps) -> list[ForwardBackwardOutput]:
    outputs: dict[int, ForwardBackwardOutput] = {}
    while len(outputs) < len(calls):
        for i, call in enumerate(calls):
            if i not in outputs:
                try:
                    next(call)
                except StopIteration as end:
                    outputs[i] = end.value
    return [outputs[i] for i in range(len(calls))]


def assert_equal(found: ForwardBackwardOutput, expected: ForwardBackwardOutput) -> None:
    assert all(map(torch.equal, found.logprobs, expected.logprobs))
    assert found.metrics == expected.metrics


def test_each_step_tells_its_tokens(trainer: Trainer, run: LoraRun) -> None:
    data = supervised(policy_data([30, 20, 10, 5]))
    steps = list(trainer.forward_backward_steps(run, data, "cross_entropy"))
    assert len(steps) > 1
    assert sum(steps) == 65
    assert list(trainer.forward_steps(run.adapter, data, "cross_entropy")) == steps


def test_runs_that_take_turns_are_as_if_alone(trainer: Trainer) -> None:
    first_data = supervised(policy_data([30, 30, 12, 12, 7]))
    second_data = policy_data([25, 9, 31], seed=4)
    alone = [random_run(trainer), random_run(trainer, lora.LoraSpec(3, seed=5))]
    together = [random_run(trainer), random_run(trainer, lora.LoraSpec(3, seed=5))]
    for _ in range(2):
        expected = [
            trainer.forward_backward(alone[0], first_data, "cross_entropy"),
            trainer.forward_backward(alone[1], second_data, "gspo"),
        ]
        found = take_turns(
            trainer.forward_backward_steps(together[0], first_data, "cross_entropy"),
            trainer.forward_backward_steps(together[1], second_data, "gspo"),
        )
        for output, want, run, other in zip(found, expected, together, alone, strict=True):
            assert_equal(output, want)
            assert run.grad.any()
            assert torch.equal(run.grad, other.grad)
            trainer.optim_step(run, AdamParams())
            trainer.optim_step(other, AdamParams())
            assert torch.equal(run.adapter.flat, other.adapter.flat)


def test_calls_on_one_adapter_may_take_turns(trainer: Trainer) -> None:
    data, more = supervised(policy_data([30, 30, 12])), supervised(policy_data([28, 20, 9], seed=2))
    alone, together = random_run(trainer), random_run(trainer)
    expected = [
        trainer.forward_backward(alone, data, "cross_entropy"),
        trainer.forward(alone.adapter, more, "cross_entropy"),
        trainer.forward(alone.adapter, data, "cross_entropy"),
    ]
    found = take_turns(
        trainer.forward_backward_steps(together, data, "cross_entropy"),
        trainer.forward_steps(together.adapter, more, "cross_entropy"),
        trainer.forward_steps(together.adapter, data, "cross_entropy"),
    )
    for output, want in zip(found, expected, strict=True):
        assert_equal(output, want)
    assert torch.equal(together.grad, alone.grad)

    twice = random_run(trainer)
    take_turns(*(trainer.forward_backward_steps(twice, d, "cross_entropy") for d in (data, more)))
    apart = random_run(trainer)
    for part in (data, more):
        trainer.forward_backward(apart, part, "cross_entropy")
    torch.testing.assert_close(twice.grad, apart.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("taken", [1, 2, 3])
def test_a_call_closed_before_its_end_leaves_no_trace(taken: int, trainer: Trainer, run: LoraRun) -> None:
    data = supervised(policy_data([30, 30, 30]))
    trainer.forward_backward(run, data, "cross_entropy")
    before = run.grad.clone()
    steps = trainer.forward_backward_steps(run, data, "cross_entropy")
    for _ in range(taken):  # the third computes the last micro-batch
        next(steps)
    steps.close()
    assert torch.equal(run.grad, before)
    trainer.forward_backward(run, data, "cross_entropy")
    assert torch.equal(run.grad, 2 * before)


def test_an_error_ends_its_own_call_alone(trainer: Trainer) -> None:
    data = supervised(policy_data([30, 30, 12]))
    alone, together, refused = (random_run(trainer) for _ in range(3))
    trainer.forward_backward(alone, data, "cross_entropy")
    steps = trainer.forward_backward_steps(together, data, "cross_entropy")
    next(steps)
    bad = trainer.forward_backward_steps(refused, [Datum([1, 2], {})], "cross_entropy")
    with pytest.raises(InputError):
        next(bad)
    take_turns(steps)
    assert torch.equal(together.grad, alone.grad)
    assert not refused.grad.any()


# --- pauses -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny() -> tuple[LoadedModel, Decoder]:
    model = load_model(device="cpu", dtype="float32")
    return model, Decoder(model.spec, model.weights)


def texts(model: LoadedModel, adapter: lora.Adapter) -> list[SampleRequest]:
    """Groups, lone samples and scored prompts, under an adapter and under none."""
    questions = ("What is 3 + 4?", "Name three colours.", "Hello!", "Tell me about the sea.")
    prompts = [model.tokenizer.encode(question) for question in questions]
    return [
        SampleRequest(
            prompt,
            SamplingParams(max_tokens=16, seed=i, stop=[]),
            num_samples=1 + i % 2,
            adapter=adapter if i % 2 else None,
            prompt_logprobs=i == 3,
        )
        for i, prompt in enumerate(prompts)
    ]


def make_sampler(model: LoadedModel, decoder: Decoder) -> Sampler:
    return Sampler(decoder, model.tokenizer, model.eos_token_ids, cache_tokens=8192)


def train(trainer: Trainer, data: list[Datum]) -> tuple[LoraRun, list[Any]]:
    run = trainer.create_run(lora.LoraSpec(4, seed=0))
    outputs: list[Any] = []
    for loss, part in (("cross_entropy", supervised(data)), ("gspo", data)):
        output = trainer.forward_backward(run, part, loss)
        outputs.append((torch.cat(output.logprobs), output.metrics))
        outputs.append((run.grad.clone(), trainer.optim_step(run, AdamParams(learning_rate=1e-3))))
    return run, outputs


class SamplingPause:
    """Steps a sampler whenever training pauses, and sees to it that nothing of the step stays behind."""

    def __init__(self, sampler: Sampler, requests: list[SampleRequest]):
        self._sampler = sampler
        self._requests = requests
        self.rounds: list[list[Ticket]] = []

    def __call__(self) -> None:
        before = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_num_threads()
        if self._sampler.idle:  # there is always something to sample
            self.rounds.append([self._sampler.submit(request) for request in self._requests])
        self._sampler.step()
        assert before == (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_num_threads())


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.long
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("recompute", [False, True])
def test_training_that_pauses_to_sample_changes_neither(
    recompute: bool, tiny: tuple[LoadedModel, Decoder]
) -> None:
    model, decoder = tiny
    data = policy_data([30, 30, 12, 7], vocabulary=model.spec.vocab_size)
    data += policy_data([8, 8], vocabulary=model.spec.vocab_size, seed=3, prompt=20)
    room = SAME_ROOM
    if recompute:
        room = 32 * activation_bytes(model.spec, 4, decoder.dtype, recompute=True)
        assert room // activation_bytes(model.spec, 4, decoder.dtype, recompute=False) < 30
    requests = texts(model, random_run(Trainer(decoder)).adapter.snapshot())
    sampler = make_sampler(model, decoder)
    alone = [sampler.sample(requests) for _ in range(2)]  # a second time, prompts are in the cache
    run, outputs = train(Trainer(decoder, room=room), data)

    pause = SamplingPause(make_sampler(model, decoder), requests)
    paused_run, paused_outputs = train(Trainer(decoder, room=room, pause=pause), data)
    for found, expected in zip(paused_outputs, outputs, strict=True):
        assert torch.equal(found[0], expected[0])
        assert found[1] == expected[1]
    assert torch.equal(paused_run.adapter.flat, run.adapter.flat)
    finished = [[ticket.result for ticket in tickets] for tickets in pause.rounds[:-1]]
    assert len(finished) >= 2
    assert finished[0] == alone[0]
    assert all(results == alone[1] for results in finished[1:])


@pytest.mark.parametrize("recompute", [False, True])
def test_pauses_come_between_layers_and_chunks(recompute: bool) -> None:
    decoder = make_decoder(make_reference("llama"))
    pauses: list[bool] = []
    room = SAME_ROOM
    if recompute:
        room = 32 * activation_bytes(decoder.spec, 4, decoder.dtype, recompute=True)
    trainer = Trainer(decoder, room=room, pause=lambda: pauses.append(torch.is_grad_enabled()))
    run, data = random_run(trainer), supervised(policy_data([32]))
    layers, chunks = decoder.spec.num_layers, 2  # of at least 16 rows each
    trainer.forward(run.adapter, data, "cross_entropy")
    assert pauses == [False] * (layers + chunks)
    pauses.clear()
    trainer.forward_backward(run, data, "cross_entropy")
    assert pauses == [True] * layers + [False] * (chunks + layers)


def test_a_pause_that_fails_fails_the_call_and_loses_nothing(tiny: tuple[LoadedModel, Decoder]) -> None:
    _, decoder = tiny
    left = [0]

    def pause() -> None:
        left[0] -= 1
        if left[0] == 0:
            raise RuntimeError("stop")

    trainer, data = Trainer(decoder, room=SAME_ROOM, pause=pause), supervised(policy_data([30, 30]))
    run = random_run(trainer)
    trainer.forward_backward(run, data, "cross_entropy")
    before = run.grad.clone()
    passes = -left[0]
    for at in range(1, passes + 1):
        left[0] = at
        with pytest.raises(RuntimeError, match="stop"):
            trainer.forward_backward(run, data, "cross_entropy")
        assert torch.is_grad_enabled()
    assert torch.equal(run.grad, before)
    trainer.forward_backward(run, data, "cross_entropy")
    assert torch.equal(run.grad, 2 * before)
