"""The DPO loss: against plain PyTorch, against the two passes it saves, and with little memory."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.tinker_engine.families import make_decoder, make_reference
from tests.tinker_engine.training.conftest import random_run
from tinker_engine.errors import InputError
from tinker_engine.training.losses import LOSSES, LossInputs, loss_metrics, read_name, read_options
from tinker_engine.training.memory import activation_bytes
from tinker_engine.training.own_losses import DPO, OWN_LOSSES
from tinker_engine.training.trainer import LoraRun, Trainer
from tinker_engine.training.types import Datum, ForwardBackwardOutput

OPTIONS = {"beta": 0.7, "label_smoothing": 0.1, "scale": 0.25}


def pairs(lengths: list[tuple[int, int]], prompt: int = 20, seed: int = 0) -> list[Datum]:
    """Each pair has a prompt of its own, which counts for nothing."""
    generator = np.random.default_rng(seed)
    data: list[Datum] = []
    for both in lengths:
        start = generator.integers(0, 131, prompt)
        for length in both:
            tokens = np.concatenate((start, generator.integers(0, 131, length + 1)))
            size = len(tokens) - 1
            inputs = {
                "target_tokens": tokens[1:],
                "weights": (np.arange(size) >= prompt - 1).astype(np.float32),
                "reference_logprobs": (-4.9 + generator.normal(size=size)).astype(np.float32),
            }
            data.append(Datum(tokens[:-1], inputs))
    return data


def by_hand(data: list[Datum], logprobs: list[torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
    """One pair at a time."""
    total = torch.zeros((), dtype=torch.float64)
    rewards: list[tuple[float, float]] = []
    for i in range(0, len(data), 2):
        scores = []
        for datum, lp in zip(data[i : i + 2], logprobs[i : i + 2], strict=True):
            weights, reference = (
                torch.as_tensor(np.asarray(datum.loss_fn_inputs[name]))
                for name in ("weights", "reference_logprobs")
            )
            scores.append(OPTIONS["beta"] * (weights * (lp - reference)).double().sum())
        odds = torch.sigmoid(scores[0] - scores[1])
        wrong = OPTIONS["label_smoothing"]
        total = total - OPTIONS["scale"] * ((1 - wrong) * odds.log() + wrong * (1 - odds).log())
        rewards.append((scores[0].item(), scores[1].item()))
    chosen, rejected = np.mean(rewards, axis=0)
    right = float(np.mean([c > r for c, r in rewards]))
    return total, {
        "loss:sum": total.item(),
        "chosen_reward:mean": chosen,
        "rejected_reward:mean": rejected,
        "margin:mean": chosen - rejected,
        "accuracy:mean": right,
    }


def two_requests(trainer: Trainer, run: LoraRun, data: list[Datum]) -> ForwardBackwardOutput:
    """What forward_backward_custom does: a forward pass, the loss at the client, and its gradient as weights."""
    plain = [
        replace(datum, loss_fn_inputs={n: datum.loss_fn_inputs[n] for n in ("target_tokens", "weights")})
        for datum in data
    ]
    output = trainer.forward(run.adapter, plain, "cross_entropy")
    leaves = [lp.clone().requires_grad_() for lp in output.logprobs]
    loss, metrics = by_hand(data, leaves)
    gradients = torch.autograd.grad(loss, leaves)
    linear = [
        replace(datum, loss_fn_inputs={**datum.loss_fn_inputs, "weights": -gradient})
        for datum, gradient in zip(plain, gradients, strict=True)
    ]
    trainer.forward_backward(run, linear, "cross_entropy")
    return replace(output, metrics=metrics)


def assert_same(first: ForwardBackwardOutput, second: ForwardBackwardOutput) -> None:
    assert first.metrics == pytest.approx(second.metrics, rel=1e-4, abs=1e-5)
    for a, b in zip(first.logprobs, second.logprobs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


LENGTHS = [(5, 30), (11, 11), (8, 3), (2, 17), (9, 9)]


def test_one_request_equals_two(trainer: Trainer) -> None:
    data = pairs(LENGTHS)
    once, twice = random_run(trainer), random_run(trainer)
    assert_same(trainer.forward_backward(once, data, DPO, OPTIONS), two_requests(trainer, twice, data))
    assert once.grad.abs().max() > 1e-3
    torch.testing.assert_close(once.grad, twice.grad, atol=1e-6, rtol=1e-3)


def test_answers_that_begin_alike_share_rows_that_pull_both_ways(trainer: Trainer) -> None:
    """The common tokens belong to both sides, and their gradients cancel."""
    chosen, rejected = pairs([(12, 12)])
    tokens = np.array(chosen.tokens)
    tokens[-1] += 1
    targets = np.array(chosen.loss_fn_inputs["target_tokens"])
    targets[-2] = tokens[-1]
    other = replace(
        rejected, tokens=tokens, loss_fn_inputs={**chosen.loss_fn_inputs, "target_tokens": targets}
    )
    once, twice = random_run(trainer), random_run(trainer)
    assert_same(
        trainer.forward_backward(once, [chosen, other], DPO, OPTIONS),
        two_requests(trainer, twice, [chosen, other]),
    )
    torch.testing.assert_close(once.grad, twice.grad, atol=1e-6, rtol=1e-3)


def test_pairs_in_many_micro_batches_and_pairs_that_do_not_fit() -> None:
    """Little memory: one pair per pass; less: the pair is torn and takes two passes."""
    decoder = make_decoder(make_reference("llama"))
    data = pairs([*LENGTHS, (60, 60)])
    least = activation_bytes(decoder.spec, 4, decoder.dtype, recompute=True)
    whole = 20 + 60 + 60
    passes: list[int] = []
    outputs: list[tuple[ForwardBackwardOutput, torch.Tensor]] = []
    for room in (None, whole * least, (whole - 1) * least):
        trainer = Trainer(decoder, room=room)
        run = random_run(trainer)
        steps = trainer.forward_backward_steps(run, data, DPO, OPTIONS)
        tokens: list[int] = []
        while True:
            try:
                tokens.append(next(steps))
            except StopIteration as end:
                outputs.append((end.value, run.grad))
                break
        passes.append(sum(tokens))
    once = sum(20 + a + b for a, b in [*LENGTHS, (60, 60)])
    assert passes[:2] == [once, once]
    assert passes[2] >= 2 * once
    for output, grad in outputs[1:]:
        assert_same(output, outputs[0][0])
        torch.testing.assert_close(grad, outputs[0][1], atol=1e-5, rtol=1e-3)


def test_forward_alone_gives_the_same_figures(trainer: Trainer, run: LoraRun) -> None:
    data = pairs(LENGTHS)
    assert_same(
        trainer.forward(run.adapter, data, DPO, OPTIONS), trainer.forward_backward(run, data, DPO, OPTIONS)
    )


def test_the_same_call_gives_the_same_bits(trainer: Trainer) -> None:
    data = pairs(LENGTHS)
    runs = [random_run(trainer), random_run(trainer)]
    first, second = (trainer.forward_backward(run, data, DPO, OPTIONS) for run in runs)
    assert first.metrics == second.metrics
    assert torch.equal(runs[0].grad, runs[1].grad)


def test_the_value_where_policy_and_reference_agree() -> None:
    """log 2 per pair, and half of beta as the gradient's size: plain DPO by hand."""
    lp = torch.tensor([-1.0, -2.0, -3.0])
    fields = {"weights": torch.ones(3), "reference_logprobs": lp}
    inputs = LossInputs(fields, torch.tensor([0, 0, 1]))
    metrics = loss_metrics(LOSSES[DPO], lp, inputs, read_options(DPO, None))
    assert metrics["loss:sum"] == pytest.approx(math.log(2))
    assert metrics["margin:mean"] == metrics["accuracy:mean"] == 0


def test_bad_pairs_are_refused_before_any_work(trainer: Trainer, run: LoraRun) -> None:
    data = pairs([(3, 4), (5, 6)])
    with pytest.raises(InputError, match=r"has 3 datums; tinker_engine/dpo takes groups of 2"):
        trainer.forward_backward(run, data[:3], DPO)
    bare = replace(data[0], loss_fn_inputs={k: v for k, v in data[0].loss_fn_inputs.items() if k[0] != "r"})
    with pytest.raises(InputError, match=r"tinker_engine/dpo needs reference_logprobs; got"):
        trainer.forward_backward(run, [bare, *data[1:]], DPO)
    assert not run.grad.any()


def test_custom_names_a_loss_by_its_id() -> None:
    assert set(OWN_LOSSES) <= LOSSES.keys()
    assert read_name("custom", {"loss_id": DPO, "beta": 0.3}) == (DPO, {"beta": 0.3})
    assert read_name("ppo", None) == ("ppo", {})
    with pytest.raises(InputError, match=r"unknown loss_id 'mine'.*forward_backward_custom"):
        read_name("custom", {"loss_id": "mine"})
    with pytest.raises(InputError, match="unknown loss_id None"):
        read_name("custom", None)
