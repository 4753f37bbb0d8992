"""Training on the real engine with its tiny model: all modes, all losses, and the files of a run."""

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest

from tinker_cookbook.rl import train
from tinker_cookbook.rl.task_env import TaskRLDatasetBuilder

MODEL = "tinker-engine/tiny-chat"
LOSSES = ["importance_sampling", "ppo", "cispo", "dro", "gspo"]


@pytest.fixture
def server(engine):
    return engine


def config(server, folder: Path, *, steps: int = 2, test_size: int = 0, **changes: Any) -> train.Config:
    dataset = TaskRLDatasetBuilder(
        task="arithmetic",
        model_name_for_tokenizer=MODEL,
        renderer_name="chatml",
        batch_size=4,
        group_size=4,
        n_batches=steps,
        test_size=test_size,
    )
    fields: dict[str, Any] = {"max_tokens": 8, "learning_rate": 1e-3, "eval_every": 0, "save_every": 0}
    return train.Config(
        log_path=str(folder),
        base_url=server.url,
        model_name=MODEL,
        recipe_name="test",
        lora_rank=4,
        dataset_builder=dataset,
        **fields | changes,
    )


def run(run_config: train.Config) -> list[dict[str, Any]]:
    async def main() -> None:
        async with asyncio.timeout(120):
            await train.main(run_config)

    asyncio.run(main())
    lines = (Path(run_config.log_path) / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


STREAM = train.StreamMinibatchConfig(groups_per_batch=4, num_minibatches=2)


@pytest.mark.parametrize(
    ("mode", "changes"),
    [
        ("sync", {"compute_post_kl": True, "num_substeps": 2}),
        ("streaming", {"stream_minibatch_config": STREAM}),
        ("async", {"async_config": train.AsyncConfig(max_steps_off_policy=1, groups_per_batch=4)}),
    ],
)
def test_every_mode_trains_and_writes_its_files(server, tmp_path, mode, changes):
    rows = run(config(server, tmp_path, steps=3, test_size=4, eval_every=2, **changes))
    trained = [row for row in rows if "optim/entropy" in row]
    assert [row["step"] for row in trained] == [0, 1, 2]
    assert {row["step"] for row in rows if "test/env/all/correct" in row} == {0, 2, 3}
    for row in trained:
        assert row["env/all/total_episodes"] == 16
        assert row["optim/optimizer_steps"] == changes.get("num_substeps", 1)
        fresh = row["sampling_client/step_min"] == row["step"]
        if fresh:  # stale samples have updates in between
            assert row["optim/logprob_gap_max"] < 1e-4
    assert trained[0]["optim/logprob_gap_max"] < 1e-4
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert files >= {
        "config.json",
        "metrics.jsonl",
        "checkpoints.jsonl",
        "timing_spans.jsonl",
        "logs.log",
        "reward.png",
        *(f"iteration_00000{step}/train.html" for step in range(3)),
        *(f"iteration_00000{step}/train_rollout_summaries.jsonl" for step in range(3)),
        *(f"iteration_00000{step}/eval_test.html" for step in (0, 2, 3)),
        *(f"iteration_00000{step}/eval_test_rollout_summaries.jsonl" for step in (0, 2, 3)),
    }
    page = (tmp_path / "iteration_000000/train.html").read_text(encoding="utf-8")
    assert ".lt-tok.p1" in page, "the colours of advantages are in the page"
    summaries = (tmp_path / "iteration_000000/train_rollout_summaries.jsonl").read_text().splitlines()
    assert len(summaries) == 16
    assert (tmp_path / "reward.png").read_bytes()[:4] == b"\x89PNG"
    (record,) = [json.loads(line) for line in (tmp_path / "checkpoints.jsonl").read_text().splitlines()]
    assert (record["batch"], record["final"]) == (3, True)


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_runs(server, tmp_path, loss):
    rows = run(config(server, tmp_path, steps=1, loss_fn=loss))
    assert math.isfinite(rows[0]["optim/loss:sum"])
    assert rows[0]["optim/logprob_gap_max"] < 1e-4, "sampler and trainer agree on the same weights"
    assert rows[0]["optim/optimizer_steps"] == 1


def test_a_penalty_and_importance_weights_run_and_a_run_goes_on_where_it_stopped(server, tmp_path):
    options: dict[str, Any] = {
        "kl_penalty_coef": 0.1,
        "kl_discount_factor": 0.9,
        "kl_reference_config": train.KLReferenceConfig(base_model=MODEL),
        "max_importance_weight": 2.0,
        "advantage": "group_mean_std",
    }
    first = run(config(server, tmp_path, steps=3, max_steps=1, **options))
    assert abs(first[0]["kl_policy_base"]) < 1e-4, "a fresh adapter is its base"
    assert first[0]["optim/importance_weight_mean"] == pytest.approx(1.0, abs=1e-3)
    rows = run(config(server, tmp_path, steps=3, max_steps=2, **options))
    assert [row["step"] for row in rows] == [0, 1]
    assert rows[1]["kl_policy_base"] != 0
