"""Training against transformers + PEFT + autograd, and the promises around it."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.tinker_engine.families import FAMILIES, make_decoder, make_reference
from tests.tinker_engine.training.conftest import policy_data, random_run, supervised
from tests.tinker_engine.training.reference import DEFAULTS, named_gradients, peft_gradients
from tinker_engine.errors import InputError, MemoryLimitError, NonFiniteError
from tinker_engine.model.lora import LoraSpec
from tinker_engine.training import head, packing
from tinker_engine.training import trainer as trainer_module
from tinker_engine.training.memory import activation_bytes
from tinker_engine.training.trainer import LoraRun, Trainer
from tinker_engine.training.types import AdamParams, CsrMatrix, Datum


def check_against_reference(
    family: str, loss: str, data: list[Datum], config: dict[str, float], folder: Path, lora: LoraSpec
) -> None:
    reference = make_reference(family, dtype=torch.float64)
    trainer = Trainer(make_decoder(reference))
    run = random_run(trainer, lora)
    output = trainer.forward_backward(run, data, loss, config)
    value, logprobs, grads = peft_gradients(reference, run.adapter, data, loss, config, folder)
    assert output.metrics["loss:sum"] == pytest.approx(value, rel=1e-6)
    for own, expected in zip(output.logprobs, logprobs, strict=True):
        torch.testing.assert_close(own, expected, atol=1e-5, rtol=1e-6)  # theirs norms in fp32
    own_grads = named_gradients(run.adapter, run.grad)
    assert own_grads.keys() == grads.keys()
    for name, expected in grads.items():
        error = (own_grads[name] - expected).norm() / expected.norm()
        assert error < 2e-5, f"{name}: relative error {error:.1e}"


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("loss", DEFAULTS)
def test_every_loss_equals_an_independent_implementation(loss: str, tmp_path: Path) -> None:
    """Mixed lengths, and a group that shares its prompt, in one call."""
    data = policy_data([5, 30, 11, 11]) + policy_data([4, 9, 6], seed=2, prompt=25)
    data = supervised(data) if loss == "cross_entropy" else data
    config = {"clip_low_threshold": 0.5, "clip_high_threshold": 1.5} if loss == "gspo" else {}
    check_against_reference("llama", loss, data, config, tmp_path / "adapter", LoraSpec(4, seed=0))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_equals_an_independent_implementation(family: str, tmp_path: Path) -> None:
    data = supervised(policy_data([5, 30, 11, 11]) + policy_data([4, 9, 6], seed=2, prompt=25))
    check_against_reference(family, "cross_entropy", data, {}, tmp_path / "adapter", LoraSpec(3, seed=0))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("only", ["train_attn", "train_mlp", "train_unembed"])
def test_every_choice_of_targets_equals_an_independent_implementation(only: str, tmp_path: Path) -> None:
    chosen: dict[str, Any] = {name: name == only for name in ("train_attn", "train_mlp", "train_unembed")}
    data = supervised(policy_data([5, 12]))
    check_against_reference(
        "qwen2.5", "cross_entropy", data, {}, tmp_path / "adapter", LoraSpec(2, seed=0, **chosen)
    )


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_many_weighted_targets_per_position(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    data = [
        Datum(
            generator.integers(0, 131, length),
            {
                "target_tokens": generator.integers(0, 131, (length, 5)),
                "weights": generator.normal(size=(length, 5)).astype(np.float32),
            },
        )
        for length in (6, 13)
    ]
    check_against_reference("smollm2", "cross_entropy", data, {}, tmp_path / "adapter", LoraSpec(2, seed=0))


def test_sparse_targets_equal_dense_ones(trainer: Trainer) -> None:
    generator = np.random.default_rng(0)
    tokens = generator.integers(0, 131, 8)
    targets = np.where(generator.random((8, 6)) < 0.5, generator.integers(1, 131, (8, 6)), 0)
    weights = np.where(targets > 0, generator.normal(size=(8, 6)), 0).astype(np.float32)
    weights[3, 2] = 0.5  # a weight on token 0, which the sparse targets leave out

    def csr(dense: np.ndarray) -> CsrMatrix:
        rows, columns = np.nonzero(dense)
        starts = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=len(dense)))))
        return CsrMatrix(dense[rows, columns], starts, columns, dense.shape)

    results: list[tuple[Tensor, Tensor]] = []
    for inputs in (
        {"target_tokens": targets, "weights": weights},
        {"target_tokens": csr(targets), "weights": csr(weights)},
    ):
        run = random_run(trainer)
        output = trainer.forward_backward(run, [Datum(tokens, inputs)], "cross_entropy")
        results.append((output.logprobs[0], run.grad))
    assert results[0][0].shape == (8, 6)
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_gradients_accumulate_until_the_step(trainer: Trainer) -> None:
    data = supervised(policy_data([5, 9, 12]))
    together, apart = random_run(trainer), random_run(trainer)
    whole = trainer.forward_backward(together, data, "cross_entropy")
    parts = [trainer.forward_backward(apart, [datum], "cross_entropy") for datum in data]
    torch.testing.assert_close(together.grad, apart.grad, atol=1e-5, rtol=1e-4)
    assert whole.metrics["loss:sum"] == pytest.approx(
        sum(part.metrics["loss:sum"] for part in parts), rel=1e-5
    )
    for run in (together, apart):
        trainer.optim_step(run, AdamParams())
        assert not run.grad.any()
    torch.testing.assert_close(together.adapter.flat, apart.adapter.flat, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("loss", ["cross_entropy", "gspo"])
def test_micro_batches_change_nothing_but_rounding(loss: str) -> None:
    """Little memory means many small passes, and recomputation for a sequence that is too long for one."""
    decoder = make_decoder(make_reference("llama"))
    data = policy_data([5, 60, 12, 12]) + policy_data([8, 8, 8], seed=3, prompt=20)
    data = supervised(data) if loss == "cross_entropy" else data
    little = 62 * activation_bytes(decoder.spec, 4, decoder.dtype, recompute=True)
    assert little // activation_bytes(decoder.spec, 4, decoder.dtype, recompute=False) < 60
    results = []
    for room in (None, little):
        trainer = Trainer(decoder, room=room)
        run = random_run(trainer)
        output = trainer.forward_backward(run, data, loss)
        results.append((run.grad, torch.cat([lp.flatten() for lp in output.logprobs]), output.metrics))
    one, other = results[0][0], results[1][0]
    assert float((one - other).norm() / one.norm()) < 1e-5
    torch.testing.assert_close(results[0][1], results[1][1], atol=1e-5, rtol=1e-4)
    assert results[0][2] == pytest.approx(results[1][2], rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("loss", ["cross_entropy", "importance_sampling", "ppo", "cispo", "dro", "gspo"])
def test_sharing_what_sequences_begin_with_changes_nothing_but_rounding(
    loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = make_decoder(make_reference("qwen2.5"))
    groups = [policy_data([7, 7, 12], seed=seed, prompt=40) for seed in (1, 2)]
    for datum in groups[1]:  # prompts of two groups that begin alike, for a tree of three levels
        np.asarray(datum.tokens)[:20] = groups[0][0].tokens[:20]
    data = supervised([*groups[0], *groups[1]]) if loss == "cross_entropy" else [*groups[0], *groups[1]]
    gradients: list[Tensor] = []
    computed: list[int] = []
    for min_shared in (packing.MIN_SHARED, 1 << 30):
        monkeypatch.setattr(trainer_module, "pack", partial(packing.pack, min_shared=min_shared))
        trainer = Trainer(decoder)
        run = random_run(trainer)
        computed.append(sum(trainer.forward_backward_steps(run, data, loss)))
        trainer.forward_backward(run, data, loss)
        gradients.append(run.grad)
    assert computed == [20 + 2 * 20 + 2 * 26, 6 * 40 + 2 * 26]
    assert (gradients[0] - gradients[1]).norm() < 1e-5 * gradients[1].norm()


def test_a_sequence_that_cannot_fit_is_refused_before_any_work() -> None:
    trainer = Trainer(make_decoder(make_reference("llama")), room=100_000)
    run = random_run(trainer)
    with pytest.raises(MemoryLimitError, match="400 tokens"):
        trainer.forward_backward(run, supervised(policy_data([400])), "cross_entropy")
    assert not run.grad.any()


def test_full_logits_never_exist_and_idle_rows_cost_no_backward(
    trainer: Trainer, run: LoraRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocabulary = trainer.decoder.spec.vocab_size
    monkeypatch.setattr(head, "CHUNK_ELEMENTS", 20 * vocabulary)
    forward_rows: list[int] = []
    backward_rows: list[int] = []
    layer = trainer.decoder.head
    call, input_grad = type(layer).__call__, type(layer).input_grad

    def counting_call(self: Any, x: Tensor) -> Tensor:
        if self is layer:
            forward_rows.append(len(x))
        return call(self, x)

    def counting_grad(self: Any, dy: Tensor) -> Tensor:
        if self is layer:
            backward_rows.append(len(dy))
        return input_grad(self, dy)

    monkeypatch.setattr(type(layer), "__call__", counting_call)
    monkeypatch.setattr(type(layer), "input_grad", counting_grad)
    (datum,) = supervised(policy_data([100]))
    inputs = dict(datum.loss_fn_inputs)
    weights = np.zeros(100, dtype=np.float32)
    weights[[3, 40, 41, 77]] = 1.0
    trainer.forward_backward(run, [Datum(datum.tokens, inputs | {"weights": weights})], "cross_entropy")
    assert max(forward_rows) <= 20
    assert sum(forward_rows) == 100
    assert sum(backward_rows) == 4


def test_forward_gives_the_same_numbers_and_no_gradient(trainer: Trainer, run: LoraRun) -> None:
    data = policy_data([5, 9])
    forward = trainer.forward(run.adapter, data, "ppo")
    assert not run.grad.any()
    both = trainer.forward_backward(run, data, "ppo")
    assert all(map(torch.equal, forward.logprobs, both.logprobs))
    assert forward.metrics == both.metrics
    assert {"loss:sum", "logprob_gap:mean", "logprob_gap:max", "ratio:mean"} <= both.metrics.keys()


def test_forward_without_an_adapter_is_the_base_model() -> None:
    reference = make_reference("qwen3")
    trainer = Trainer(make_decoder(reference))
    (datum,) = supervised(policy_data([20]))
    with torch.no_grad():
        logits = reference(torch.as_tensor(np.asarray(datum.tokens))[None]).logits[0]
    targets = torch.as_tensor(np.asarray(datum.loss_fn_inputs["target_tokens"]))
    expected = torch.log_softmax(logits, -1).gather(1, targets[:, None])[:, 0]
    output = trainer.forward(None, [datum], "cross_entropy")
    torch.testing.assert_close(output.logprobs[0], expected, atol=1e-4, rtol=1e-4)


def test_two_runs_with_one_seed_are_identical_to_the_bit() -> None:
    trainer = Trainer(make_decoder(make_reference("qwen3")))
    finals: list[LoraRun] = []
    for _ in range(2):
        run = trainer.create_run(LoraSpec(8, seed=11))
        for step in range(4):
            data = policy_data([7, 40, 40, 13], seed=step) + policy_data([9, 9], seed=step, prompt=30)
            trainer.forward_backward(run, supervised(data), "cross_entropy")
            trainer.forward_backward(run, data, "gspo")
            trainer.optim_step(run, AdamParams(learning_rate=1e-3, grad_clip_norm=1.0))
        finals.append(run)
    assert torch.equal(finals[0].adapter.flat, finals[1].adapter.flat)
    assert torch.equal(finals[0].optimizer.second, finals[1].optimizer.second)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_gives_about_the_same_gradient(dtype: torch.dtype) -> None:
    """The adapter and its gradient stay in fp32 on a base of any precision."""
    data = policy_data([5, 30, 11]) + policy_data([4, 9], seed=2, prompt=25)
    grads: list[Tensor] = []
    for base in (torch.float32, dtype):
        trainer = Trainer(make_decoder(make_reference("qwen3", dtype=base)))
        run = random_run(trainer)
        trainer.forward_backward(run, supervised(data), "cross_entropy")
        trainer.optim_step(run, AdamParams(learning_rate=0.0))
        trainer.forward_backward(run, supervised(data), "cross_entropy")
        grads.append(run.grad)
    assert grads[1].dtype == torch.float32
    assert (grads[1] - grads[0]).norm() < 0.05 * grads[0].norm()


def test_training_lowers_the_loss(trainer: Trainer) -> None:
    run = trainer.create_run(LoraSpec(8, seed=0))
    data = [
        Datum(
            d.tokens, {"target_tokens": d.loss_fn_inputs["target_tokens"], "weights": np.ones(len(d.tokens))}
        )
        for d in policy_data([12, 12])
    ]
    losses: list[float] = []
    for _ in range(40):
        losses.append(trainer.forward_backward(run, data, "cross_entropy").metrics["loss:sum"])
        trainer.optim_step(run, AdamParams(learning_rate=1e-2))
    assert losses[-1] < 0.2 * losses[0]


def test_a_non_finite_gradient_refuses_the_step_and_training_can_go_on(
    trainer: Trainer, run: LoraRun
) -> None:
    trainer.forward_backward(run, supervised(policy_data([5])), "cross_entropy")
    trainer.optim_step(run, AdamParams())
    before = state(run)
    run.grad[3] = torch.nan
    with pytest.raises(NonFiniteError, match="refused"):
        trainer.optim_step(run, AdamParams())
    assert all(map(torch.equal, before, state(run)))
    trainer.forward_backward(run, supervised(policy_data([5])), "cross_entropy")
    trainer.optim_step(run, AdamParams())
    assert torch.isfinite(run.adapter.flat).all()


# --- bad input ----------------------------------------------------------------------------------


def state(run: LoraRun) -> list[Tensor]:
    return [t.clone() for t in (run.adapter.flat, run.grad, run.optimizer.first, run.optimizer.second)]


def good(**changes: Any) -> Datum:
    inputs: dict[str, Any] = {"target_tokens": [1, 2, 3], "weights": [1.0, 1.0, 1.0]}
    return Datum([4, 5, 6], {name: value for name, value in (inputs | changes).items() if value is not None})


RL: dict[str, Any] = {"weights": None, "logprobs": [-1.0, -1.0, -1.0], "advantages": [1.0, 1.0, 1.0]}

BAD: dict[str, tuple[list[Datum], str, str, str]] = {
    "no data": ([], "cross_entropy", "data", "empty"),
    "no tokens": ([Datum([], {"target_tokens": [], "weights": []})], "cross_entropy", "model_input", "empty"),
    "one token": (
        [Datum([1], {"target_tokens": [2], "weights": [1.0]})],
        "cross_entropy",
        "model_input",
        "2",
    ),
    "token beyond": ([Datum([4, 999, 6], good().loss_fn_inputs)], "cross_entropy", "model_input", "0..130"),
    "token below": ([Datum([4, -1, 6], good().loss_fn_inputs)], "cross_entropy", "model_input", "0..130"),
    "token of text": (
        [Datum(np.array([0.5, 1, 2]), good().loss_fn_inputs)],
        "cross_entropy",
        "model_input",
        "ids",
    ),
    "target beyond": ([good(target_tokens=[1, 131, 3])], "cross_entropy", "target_tokens", "0..130"),
    "target below": ([good(target_tokens=[1, -2, 3])], "cross_entropy", "target_tokens", "0..130"),
    "float target": ([good(target_tokens=[1.0, 2.0, 3.0])], "cross_entropy", "target_tokens", "integers"),
    "short target": ([good(target_tokens=[1, 2])], "cross_entropy", "target_tokens", "2 rows for 3"),
    "short weights": ([good(weights=[1.0, 1.0])], "cross_entropy", "weights", "shape"),
    "ragged weights": ([good(weights=[[1.0], [1.0, 2.0], []])], "cross_entropy", "weights", "ragged"),
    "NaN weight": ([good(weights=[1.0, float("nan"), 1.0])], "cross_entropy", "weights", "position 1"),
    "infinite weight": ([good(weights=[1.0, 1.0, float("inf")])], "cross_entropy", "weights", "position 2"),
    "no weights": ([good(weights=None)], "cross_entropy", "loss_fn_inputs", "needs weights"),
    "extra input": ([good(mask=[1.0, 1.0, 1.0])], "cross_entropy", "loss_fn_inputs", "does not take mask"),
    "no advantages": ([good(**(RL | {"advantages": None}))], "ppo", "loss_fn_inputs", "needs advantages"),
    "NaN advantage": (
        [good(**(RL | {"advantages": [1, float("nan"), 1]}))],
        "ppo",
        "advantages",
        "position 1",
    ),
    "two-dimensional RL": (
        [good(**RL, target_tokens=[[1], [2], [3]])],
        "ppo",
        "target_tokens",
        r"takes shape \[T\]",
    ),
    "too long": (
        [Datum([1] * 600, {"target_tokens": [1] * 600, "weights": [1.0] * 600})],
        "cross_entropy",
        "model_input",
        "512",
    ),
    "unknown loss": ([good()], "sft", "loss_fn", "known are"),
    "uneven inputs": ([good(**RL), good(**(RL | {"weights": [1, 1, 1]}))], "ppo", r"data\[1\]", "where data"),
    "broken CSR": (
        [good(weights=CsrMatrix(np.ones(1), np.array([0, 1]), np.zeros(1), (3, 1)))],
        "cross_entropy",
        "weights",
        "CSR",
    ),
    "second of two": ([good(), good(target_tokens=[1, 2, 500])], "cross_entropy", r"data\[1\]", "500"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("backward", [True, False])
def test_bad_input_is_named_and_loses_nothing(
    case: str, backward: bool, trainer: Trainer, run: LoraRun
) -> None:
    data, loss, field, limit = BAD[case]
    trainer.forward_backward(run, supervised(policy_data([5, 6])), "cross_entropy")
    trainer.optim_step(run, AdamParams())
    trainer.forward_backward(run, supervised(policy_data([5, 6])), "cross_entropy")
    before = state(run)
    with pytest.raises(InputError, match=limit) as error:
        trainer.forward_backward(run, data, loss) if backward else trainer.forward(run.adapter, data, loss)
    assert error.match(field)
    assert all(map(torch.equal, before, state(run)))


def test_an_error_in_mid_computation_loses_nothing(
    trainer: Trainer, run: LoraRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of several micro-batches fails: what the first one computed must not remain."""
    data = supervised(policy_data([30, 30, 30]))
    trainer.forward_backward(run, data, "cross_entropy")
    before = state(run)
    calls = 0
    original = head.head_pass

    def failing(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise RuntimeError("out of memory")
        return original(*args, **kwargs)

    monkeypatch.setattr("tinker_engine.training.trainer.head_pass", failing)
    monkeypatch.setattr("tinker_engine.training.memory.MOST_TOKENS", 32)
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.forward_backward(run, data, "cross_entropy")
    assert calls == 2
    assert all(map(torch.equal, before, state(run)))
