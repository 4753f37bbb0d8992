"""How many steps a run has, what it does not begin any more, and that nothing keeps it from ending."""

import asyncio
import multiprocessing
import signal
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import pytest

from tests.tinker_cookbook.fake_service import FakeService
from tests.tinker_cookbook.rl.small_runs import (
    MODES,
    Problem,
    Problems,
    config,
    every_place,
    groups,
    problems,
    records,
    rows,
    run,
    said,
)
from tinker_cookbook.exceptions import ConfigurationError, TrainingError
from tinker_cookbook.rl import rollout_executor, train
from tinker_cookbook.rl.step_files import REWARD
from tinker_cookbook.stores import TrainingRunStore
from tinker_cookbook.utils.curves import series_of

FINAL = "tinker://fake/weights/final"


def ahead(staleness: int, groups_per_batch: int = 2) -> train.AsyncConfig:
    return train.AsyncConfig(max_steps_off_policy=staleness, groups_per_batch=groups_per_batch)


# --- batches that differ in size --------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(1, 4, 3, 5), (1, 1, 9), (5, 1, 1, 1), (1, 0, 0, 4)])
def test_async_goes_on_until_the_data_ends_whatever_the_size_of_the_first_batch(fake, tmp_path, sizes):
    dataset = problems(*sizes)
    run_config = config(tmp_path, dataset, async_config=ahead(1), learning_rate=1.0, lr_schedule="linear")
    run(run_config)
    assert groups(fake.stored[FINAL]) == every_place(dataset)
    steps = -(-sum(sizes) // 2)
    assert [row["step"] for row in rows(run_config)] == list(range(steps))
    assert records(run_config)[-1]["batch"] == steps
    done = [row["progress/done_frac"] for row in rows(run_config)]
    assert all(0 < share <= 1 for share in done)
    assert all(adam.learning_rate > 0 for adam in fake.adam), "no step is past the end of the schedule"


def test_a_run_that_max_steps_ended_goes_on_until_the_data_ends(fake, tmp_path):
    """By the first batch alone, four steps would be all there are."""
    dataset = problems(2, 5, 5, 5)
    run(config(tmp_path, dataset, async_config=ahead(1), max_steps=5))
    assert len(fake.stored[FINAL]) == 5
    run(config(tmp_path, dataset, async_config=ahead(1)))
    assert groups(fake.stored[FINAL]) == every_place(dataset)
    fake.calls.clear()
    run(config(tmp_path, dataset, async_config=ahead(1)))
    assert fake.calls == [f"resume {FINAL}"], "and is complete then"


# --- the end in sight -------------------------------------------------------------------------------------


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_groups_that_can_no_longer_be_trained_on_are_not_begun(fake, tmp_path, staleness):
    begun: list[int] = []

    async def count() -> None:
        begun.append(1)

    dataset = problems(*[2] * 8, before=count, rewards=(0.0, 1.0))
    run_config = config(tmp_path, dataset, async_config=ahead(staleness), max_steps=3)
    run(run_config)
    assert len(fake.stored[FINAL]) == 3
    assert sum(begun) == 3 * 2 * 2, "steps of two groups of two"
    assert records(run_config)[-1]["pending"] == []
    assert records(run_config)[-1]["cursor"] == [3, 0]


def test_but_those_that_take_the_place_of_useless_ones_are(fake, tmp_path):
    batches = [[Problem(rewards=(0.0, 0.0)), Problem()] for _ in range(6)]
    run_config = config(
        tmp_path, Problems(*batches), async_config=ahead(2), max_steps=2, remove_constant_reward_groups=True
    )
    run(run_config)
    assert [len(groups([update])) for update in fake.stored[FINAL]] == [2, 2]


@pytest.mark.parametrize("mode", MODES)
def test_a_warm_up_longer_than_the_run_is_refused_before_anything_is_sampled(fake, tmp_path, mode):
    test = Problems([Problem()])
    for steps in ({"max_steps": 2}, {}):
        run_config = config(
            tmp_path, problems(2, 2, 2), test, warmup_steps=3, eval_every=1, **steps, **MODES[mode]
        )
        expected = rf"warmup_steps=3 must be less than the {steps.get('max_steps', 3)} steps of the run"
        with pytest.raises(ConfigurationError, match=expected):
            run(run_config)
    assert fake.asked == []
    run(config(tmp_path / "shorter", problems(2, 2, 2), warmup_steps=2, **MODES[mode]))


# --- a step that was torn ---------------------------------------------------------------------------------


def interrupt_at_update(fake: FakeService, run_config: train.Config, number: int) -> None:
    """Ctrl-C when the optimizer step of that number is asked for."""

    async def main() -> None:
        task = asyncio.ensure_future(train.main(run_config))

        def watch(call: str) -> None:
            if call.startswith("optim_step") and len(fake.adam) == number:
                task.cancel()

        fake.watch = watch
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
    fake.watch = lambda _: None


def test_a_step_torn_between_its_substeps_is_done_again_and_counts_once(fake, tmp_path):
    changes: dict[str, Any] = {
        "num_substeps": 2,
        "stream_minibatch_config": train.StreamMinibatchConfig(groups_per_batch=2, num_minibatches=1),
        "save_every": 0,
    }
    whole = config(tmp_path / "whole", problems(2, 2, 2), **changes)
    run(whole)
    torn = config(tmp_path / "torn", problems(2, 2, 2), **changes)
    interrupt_at_update(fake, torn, number=len(fake.adam) + 3)
    assert "in the middle of step 1" in said(torn)
    run(torn)
    assert [row["step"] for row in rows(torn)] == [0, 0, 1, 2], "a row that was written stays"

    def drawn(run_config: train.Config) -> list[Any]:
        return series_of(TrainingRunStore.from_uri(run_config.log_path).read_metrics(), REWARD)

    assert drawn(torn) == drawn(whole)
    assert len(drawn(torn)[0].points) == 3
    assert records(torn)[-1]["elapsed_tokens"] == records(whole)[-1]["elapsed_tokens"] > 0


# --- executors that do not end ----------------------------------------------------------------------------


def silent(call: str) -> None:
    """Goes to another process, where a lambda does not."""


def test_a_worker_process_that_hangs_is_ended_and_does_not_keep_the_run(fake, tmp_path, monkeypatch):
    monkeypatch.setattr(rollout_executor, "END_SECONDS", 0.1)
    fake.watch = silent
    pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    pool.submit(signal.pause)
    (process,) = pool._processes.values()
    run_config = config(tmp_path, problems(1), group_timeout_seconds=0.1)
    with pytest.raises(TrainingError, match=r"group_timeout_seconds=0\.1"):
        run(run_config, rollout_executor=pool)
    assert "ending its 1 processes" in said(run_config)
    process.join(20)
    assert process.exitcode not in (None, 0)


def test_threads_that_hang_are_told_of_and_do_not_keep_the_run(fake, tmp_path, monkeypatch):
    monkeypatch.setattr(rollout_executor, "END_SECONDS", 0.05)
    with ThreadPoolExecutor(1) as pool:
        let_go = threading.Event()
        pool.submit(let_go.wait)
        run_config = config(tmp_path, problems(1), group_timeout_seconds=0.05)
        with pytest.raises(TrainingError, match=r"group_timeout_seconds=0\.05"):
            run(run_config, rollout_executor=pool)
        let_go.set()
    assert "Threads cannot be ended from outside" in said(run_config)
