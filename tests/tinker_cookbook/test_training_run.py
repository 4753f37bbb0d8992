"""The skeleton of a run: order of calls, exact resume, evaluations, interruption."""

import asyncio
import json
from pathlib import Path
from typing import Any

import chz
import pytest

from tests.tinker_cookbook.fake_service import FakeService
from tinker_cookbook import service, training_run
from tinker_cookbook.eval.evaluators import SamplingClientEvaluator, TrainingClientEvaluator
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.run_config import RunConfig
from tinker_cookbook.utils import logtree, trace


@pytest.fixture
def fake(monkeypatch) -> FakeService:
    fake = FakeService(describe=lambda data: f"batch {data[0]}")
    monkeypatch.setattr(service, "connect", lambda *_: fake)
    return fake


def config(tmp_path: Path, **changes: Any) -> RunConfig:
    fields: dict[str, Any] = {"save_every": 2, **changes}
    return RunConfig(log_path=str(tmp_path / "run"), model_name="fake/model", recipe_name="test", **fields)


class Loss(TrainingClientEvaluator):
    name = "loss"

    async def __call__(self, training_client: Any):
        return {"test/updates": len(training_client.weights)}


class Reward(SamplingClientEvaluator):
    name = "reward of/all"

    async def __call__(self, sampling_client: Any):
        logtree.log_text("a sample")
        return {"test/sampled_updates": len(sampling_client.weights)}


async def train(
    config: RunConfig, total: int, *, evaluators: Any = (), stop_at: int | None = None, ahead: int = 0
) -> None:
    """The loop of a trainer: `ahead` batches are submitted before the oldest is waited for."""
    async with training_run.training_run(config) as run:
        run.begin(total, evaluators=evaluators, headline="loss")
        pending: list[tuple[int, dict[str, Any], trace.IterationWindow]] = []
        for step in run.steps:
            with trace.trace_iteration(step) as window:
                metrics = await run.before_step(step, {"batch": step})
                if step == stop_at:
                    raise asyncio.CancelledError
                await run.training_client.forward_backward_async([step], "cross_entropy")  # pyright: ignore
                await run.training_client.optim_step_async(None)  # pyright: ignore[reportArgumentType]
                run.submitted(step, {"batch": step + 1}, tokens=10)
                pending.append((step, metrics | {"loss": 1.0}, window))
            while len(pending) > ahead:
                done, metrics, window = pending.pop(0)
                run.log_step(done, metrics, window=window, tokens=10)
        for done, metrics, window in pending:
            run.log_step(done, metrics, window=window, tokens=10)


def rows(config: RunConfig, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(config.log_path) / name).read_text().splitlines()]


def said(config: RunConfig) -> str:
    return (Path(config.log_path) / "logs.log").read_text()


def test_a_checkpoint_holds_exactly_the_batches_before_it(fake, tmp_path):
    for ahead in (0, 3):
        run_config = config(tmp_path / str(ahead))
        asyncio.run(train(run_config, 5, ahead=ahead))
        for record in rows(run_config, "checkpoints.jsonl"):
            assert fake.stored[record["state_path"]] == tuple(f"batch {i}" for i in range(record["batch"]))
        assert [r["batch"] for r in rows(run_config, "checkpoints.jsonl")] == [2, 4, 5]
        assert rows(run_config, "checkpoints.jsonl")[-1]["final"] is True
        assert [row["step"] for row in rows(run_config)] == [0, 1, 2, 3, 4]
        assert all(row["time/total"] >= 0 for row in rows(run_config))


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("stop_at", [1, 2, 3, 4])
def test_an_interrupted_run_makes_every_update_once(fake, tmp_path, stop_at, ahead):
    run_config = config(tmp_path)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(train(run_config, 6, stop_at=stop_at, ahead=ahead))
    assert "behavior_if_log_dir_exists=resume" in said(run_config)
    asyncio.run(train(run_config, 6, ahead=ahead))
    final = rows(run_config, "checkpoints.jsonl")[-1]
    assert fake.stored[final["state_path"]] == tuple(f"batch {i}" for i in range(6))
    assert final["elapsed_tokens"] == 60


def test_interrupted_in_the_final_evaluation_it_is_made_and_the_weights_saved_the_next_time(fake, tmp_path):
    class Interrupted(TrainingClientEvaluator):
        async def __call__(self, training_client: Any):
            if len(training_client.weights) == 3:
                raise asyncio.CancelledError
            return {}

    run_config = config(tmp_path)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(train(run_config, 3, evaluators=[(1, [Interrupted()])]))
    asyncio.run(train(run_config, 3, evaluators=[(1, [Loss()])]))
    assert rows(run_config)[-1]["test/updates"] == 3
    assert rows(run_config, "checkpoints.jsonl")[-1]["final"] is True
    assert len(fake.stored["tinker://fake/sampler_weights/final"]) == 3


def test_interrupted_before_the_first_update_saves_nothing(fake, tmp_path):
    run_config = config(tmp_path)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(train(run_config, 6, stop_at=0))
    assert not any(call.startswith("save") for call in fake.calls)


def test_a_lost_checkpoint_is_passed_over(fake, tmp_path):
    run_config = config(tmp_path)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(train(run_config, 6, stop_at=5))
    newest = rows(run_config, "checkpoints.jsonl")[-1]
    del fake.stored[newest["state_path"]]
    asyncio.run(train(run_config, 6))
    final = rows(run_config, "checkpoints.jsonl")[-1]
    assert fake.stored[final["state_path"]] == tuple(f"batch {i}" for i in range(6))
    assert rows(run_config)[-1]["resumed"] == 1


def test_a_complete_run_does_nothing_and_a_longer_one_goes_on(fake, tmp_path):
    run_config = config(tmp_path)
    asyncio.run(train(run_config, 3))
    fake.calls.clear()
    asyncio.run(train(run_config, 3))
    assert fake.calls == ["resume tinker://fake/weights/final"]
    asyncio.run(train(run_config, 5))
    assert fake.stored["tinker://fake/weights/final"] == tuple(f"batch {i}" for i in range(5))


def test_evaluations_see_the_weights_before_their_step_and_the_final_ones(fake, tmp_path):
    run_config = config(tmp_path)
    asyncio.run(train(run_config, 5, evaluators=[(2, [Loss()]), (4, [Reward()]), (0, [Reward()])], ahead=2))
    seen = {row["step"]: row["test/updates"] for row in rows(run_config) if "test/updates" in row}
    assert seen == {0: 0, 2: 2, 4: 4, 5: 5}
    sampled = {
        row["step"]: row["test/sampled_updates"] for row in rows(run_config) if "test/sampled_updates" in row
    }
    assert sampled == {0: 0, 4: 4, 5: 5}
    folder = Path(run_config.log_path) / "iteration_000004"
    assert sorted(path.name for path in folder.iterdir()) == [
        "eval_reward_of_all.html",
        "eval_reward_of_all_logtree.json",
    ]


def test_a_failing_step_ends_the_run_with_its_own_error(fake, tmp_path):
    fake.fail["optim_step"] = RuntimeError("the server says no")
    with pytest.raises(RuntimeError, match="the server says no"):
        asyncio.run(train(config(tmp_path), 3))
    assert "The run failed. To go on from the last checkpoint" in said(config(tmp_path))


def test_what_a_checkpoint_brings_along_is_not_ignored(fake, tmp_path):
    fake.stored["tinker://fake/weights/x"] = ("batch 9",)
    loading = {"load_checkpoint_path": "tinker://fake/weights/x"}
    with pytest.raises(ConfigurationError, match="lora_rank=32"):
        asyncio.run(train(config(tmp_path, lora_rank=8, **loading), 1))
    fake.model = "fake/other"
    with pytest.raises(ConfigurationError, match="model_name=fake/other"):
        asyncio.run(train(config(tmp_path, **loading), 1))
    fake.model = "fake/model"
    asyncio.run(train(config(tmp_path, **loading), 1))
    assert fake.stored["tinker://fake/weights/final"] == ("batch 9", "batch 0")


def test_charts_and_spans_are_written(fake, tmp_path):
    run_config = config(tmp_path, span_chart_every=2, enable_trace=True)
    asyncio.run(train(run_config, 3))
    folder = Path(run_config.log_path)
    assert {path.parent.name for path in folder.glob("*/timing_gantt.html")} == {
        "iteration_000000",
        "iteration_000002",
    }
    assert (folder / "trace_events.jsonl").stat().st_size
    assert {span["name"] for row in rows(run_config, "timing_spans.jsonl") for span in row["spans"]} >= {
        "save_checkpoint"
    }


@pytest.mark.parametrize(
    ("field", "value"), [("save_every", -1), ("lora_rank", 0), ("max_steps", 0), ("eval_every", -2)]
)
def test_a_field_that_cannot_work_is_refused(tmp_path, field, value):
    with pytest.raises(ConfigurationError, match=field):
        config(tmp_path, **{field: value})


def test_log_paths_keep_their_scheme():
    @chz.chz
    class Config(RunConfig):
        own: int = 1

    made = Config(log_path="s3://bucket/run", model_name="m", recipe_name="r")
    assert made.log_path == "s3://bucket/run"
    assert Config(log_path="~/x", model_name="m", recipe_name="r").log_path == str(Path("~/x").expanduser())
