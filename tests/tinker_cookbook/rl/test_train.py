"""The loop against a service that remembers everything: which updates are made, of what, and what is written."""

import asyncio
import json
import logging
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tinker

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
from tinker_cookbook.eval.evaluators import SamplingClientEvaluator
from tinker_cookbook.exceptions import ConfigurationError, DataError, EnvError, TrainingError
from tinker_cookbook.rl import train
from tinker_cookbook.rl.rollout_strategy import MinViableGroup
from tinker_cookbook.rl.rollouts import get_rollout_executor

FINAL = "tinker://fake/weights/final"
SUBSTEPS = {"num_substeps": 2}
IN_SUBSTEPS = {
    **{mode: MODES[mode] for mode in ("sync", "streaming", "async")},
    "sync in substeps": SUBSTEPS,
    "streaming in substeps": SUBSTEPS
    | {"stream_minibatch_config": train.StreamMinibatchConfig(groups_per_batch=2, num_minibatches=1)},
}


def optimizer_steps(fake: FakeService) -> list[str]:
    return [call.removeprefix("optim_step ") for call in fake.calls if call.startswith("optim_step")]


# --- which updates are made -------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_every_group_is_trained_on_once_and_a_checkpoint_holds_what_its_record_says(fake, tmp_path, mode):
    dataset = problems(2, 2, 2, 2, 2)
    run_config = config(tmp_path, dataset, **MODES[mode])
    run(run_config)
    assert groups(fake.stored[FINAL]) == every_place(dataset)
    assert [record["batch"] for record in records(run_config)] == [2, 4, 5]
    assert records(run_config)[-1]["final"] is True
    for record in records(run_config):
        assert len(fake.stored[record["state_path"]]) == record["batch"]
    assert [row["step"] for row in rows(run_config)] == [0, 1, 2, 3, 4]
    if "async" not in mode:
        assert [groups([update]) for update in fake.stored[FINAL]] == [
            [f"{batch}.0", f"{batch}.1"] for batch in range(5)
        ]


def test_synchronous_steps_see_their_batch_in_the_order_of_the_data(fake, tmp_path):
    async def slow() -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    run(config(tmp_path, Problems([Problem(before=slow), Problem()], [Problem()])))
    (_, _, first), (_, _, second) = fake.sent
    assert [datum.model_input.to_ints()[:2] for datum in first] == [[0, 0], [0, 0], [0, 1], [0, 1]]
    assert len(second) == 2
    samplers = [call for call in fake.calls if call.startswith("snapshot")]
    assert samplers == ["snapshot of 0 updates", "snapshot of 1 updates"], "one for each step"


def test_streaming_trains_on_what_is_done_while_others_are_played(fake, tmp_path):
    played = asyncio.Event()
    fake.watch = lambda call: played.set() if call == "forward_backward 0.1" else None

    async def wait() -> None:
        await played.wait()

    run(config(tmp_path, Problems([Problem(before=wait), Problem()]), **MODES["streaming"]))
    assert fake.stored[FINAL] == ("0.1 + 0.0",)


@pytest.mark.parametrize("streaming", [False, True])
def test_batches_that_are_no_multiple_of_the_minibatches_are_trained_on_whole(fake, tmp_path, streaming):
    dataset = problems(1, 3, 2)
    run(config(tmp_path, dataset, **(MODES["streaming"] if streaming else {})))
    assert [groups([update]) for update in fake.stored[FINAL]] == [
        ["0.0"],
        ["1.0", "1.1", "1.2"],
        ["2.0", "2.1"],
    ]


def test_substeps_split_the_data_and_are_all_submitted_before_any_answer(fake, tmp_path):
    run_config = config(tmp_path, problems(3), num_substeps=4)  # of 6 datums
    run(run_config)
    assert [len(data) for _, _, data in fake.sent] == [1, 2, 1, 2]
    assert len(optimizer_steps(fake)) == 4
    assert rows(run_config)[0]["optim/optimizer_steps"] == 4
    assert rows(run_config)[0]["optim/loss:sum"] == 4.0, "1 of each"


def test_no_more_substeps_than_data(fake, tmp_path):
    run(config(tmp_path, problems(1), num_substeps=5))
    assert [len(data) for _, _, data in fake.sent] == [1, 1]


def test_the_loss_its_options_and_the_optimizer_are_as_configured_and_the_mask_stays_home(fake, tmp_path):
    run_config = config(
        tmp_path,
        problems(1, 1, 1, 1),
        loss_fn="ppo",
        loss_fn_config={"clip_low_threshold": 0.8},
        learning_rate=1.0,
        lr_schedule="linear",
        warmup_steps=2,
        adam_beta1=0.5,
        adam_beta2=0.6,
        adam_eps=1e-3,
        weight_decay=0.25,
        grad_clip_norm=2.0,
    )
    run(run_config)
    loss, options, (datum, _) = fake.sent[0]
    assert (loss, options) == ("ppo", {"clip_low_threshold": 0.8})
    assert datum.loss_fn_inputs.keys() == {"target_tokens", "logprobs", "advantages"}
    assert datum.loss_fn_inputs["advantages"].data == [0.0, 0.0, -0.5, -0.5]
    assert [adam.learning_rate for adam in fake.adam] == [0.5, 1.0, 1.0, 0.5]
    assert [row["optim/lr"] for row in rows(run_config)] == [0.5, 1.0, 1.0, 0.5]
    adam = fake.adam[0]
    assert (adam.beta1, adam.beta2, adam.eps) == (0.5, 0.6, 1e-3)
    assert (adam.weight_decay, adam.grad_clip_norm) == (0.25, 2.0)


def test_sampling_is_as_configured_and_every_request_has_a_seed_of_its_own(fake, tmp_path):
    run(config(tmp_path, problems(2, 2), temperature=0.7, max_tokens=3))
    assert {(each.temperature, each.max_tokens) for each in fake.asked} == {(0.7, 3)}
    assert len({each.seed for each in fake.asked}) == len(fake.asked) >= 4, "one or more for each group"
    before = sorted(each.seed or 0 for each in fake.asked)
    fake.asked.clear()
    run(config(tmp_path / "again", problems(2, 2)))
    assert sorted(each.seed or 0 for each in fake.asked) == before
    fake.asked.clear()
    run(config(tmp_path / "other", problems(2, 2), seed=1))
    assert not {each.seed for each in fake.asked} & set(before)


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_groups_are_never_older_than_configured(fake, tmp_path, staleness):
    turns = iter([0, 40, 3, 17, 0, 0, 60, 5] * 9)

    async def uneven() -> None:
        for _ in range(next(turns)):
            await asyncio.sleep(0)

    dataset = problems(*[2] * 8, before=uneven)
    asynchronous = train.AsyncConfig(max_steps_off_policy=staleness, groups_per_batch=2)
    run_config = config(tmp_path, dataset, async_config=asynchronous)
    run(run_config)
    assert groups(fake.stored[FINAL]) == every_place(dataset)
    ages = [row["step"] - row["sampling_client/step_min"] for row in rows(run_config)]
    assert max(ages) <= staleness
    if staleness:
        assert max(ages) > 0, "it was sampled ahead"
    summaries = Path(run_config.log_path).glob("iteration_*/train_rollout_summaries.jsonl")
    steps = [json.loads(line) for path in summaries for line in path.read_text().splitlines()]
    assert all(0 <= row["iteration"] - row["sampling_client_step"] <= staleness for row in steps)


# --- nothing to learn from --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sync", "streaming", "async, as it comes"])
@pytest.mark.parametrize("rewards", ["constant", "failed", "masked"])
def test_a_batch_that_nothing_is_learned_from_logs_a_row_and_makes_no_update(fake, tmp_path, mode, rewards):
    fields: dict[str, Any] = {
        "constant": {"rewards": (1.0, 1.0)},
        "failed": {"rewards": (float("nan"), 0.0)},
        "masked": {"metrics": {"parse_error_masked": 1.0}},
    }[rewards]
    dataset = Problems([Problem(), Problem()], [Problem(**fields), Problem(**fields)], [Problem(), Problem()])
    run_config = config(
        tmp_path, dataset, remove_constant_reward_groups=True, rollout_error_tolerance=True, **MODES[mode]
    )
    run(run_config)
    assert [groups([update]) for update in fake.stored[FINAL]] == [["0.0", "0.1"], ["2.0", "2.1"]]
    row = rows(run_config)[1]
    assert (row["step"], row["optim/optimizer_steps"], row["rollouts/groups"]) == (1, 0, 2)
    assert "optim/entropy" not in row
    assert records(run_config)[-1]["batch"] == 3, "the data went on"
    assert "no group to learn from" in said(run_config)
    if rewards == "constant":
        assert row["env/all/by_group/frac_all_good"] == 1.0
        assert not any(key.startswith("rollout_errors") for key in row), "that is no error"
    if rewards == "failed":
        assert row["rollout_errors/groups_skipped"] == 2
        assert row["rollout_errors/EnvError"] >= 2
    snapshots = [call for call in fake.calls if call.startswith("snapshot")]
    assert snapshots == ["snapshot of 0 updates", "snapshot of 1 updates"], "the same weights serve again"


def test_dynamic_sampling_replaces_useless_groups_so_that_steps_are_full(fake, tmp_path):
    useless: dict[str, Any] = {"rewards": (0.0, 0.0)}
    batches = [[Problem(**useless), Problem()], [Problem(), Problem(**useless)], [Problem(), Problem()]]
    run_config = config(tmp_path, Problems(*batches), remove_constant_reward_groups=True, **MODES["async"])
    run(run_config)
    assert [len(groups([update])) for update in fake.stored[FINAL]] == [2, 2]
    assert groups(fake.stored[FINAL]) == ["0.1", "1.0", "2.0", "2.1"]


@pytest.mark.parametrize(
    ("useful", "updates", "last"),
    [
        ([1, 1, 1, 1, 1, 1], 3, 2),
        ([1, 1, 1, 0, 0, 0], 2, 1),  # one is left over, and trained on
        ([1, 1, 0, 0, 0, 0], 1, 2),  # what is left over is useless
        ([1, 0, 0, 1, 1, 0], 2, 1),
    ],
)
def test_when_the_data_ends_early_the_final_record_names_the_updates_made(
    fake, tmp_path, useful, updates, last
):
    batches = [[Problem(rewards=(0.0, float(useful[2 * i + j]))) for j in range(2)] for i in range(3)]
    run_config = config(
        tmp_path, Problems(*batches), remove_constant_reward_groups=True, save_every=0, **MODES["async"]
    )
    run(run_config)
    (record,) = records(run_config)
    assert record["batch"] == len(fake.stored[FINAL]) == updates
    assert len(groups(fake.stored[FINAL])) == sum(useful)
    assert len(groups(fake.stored[FINAL][-1:])) == last
    assert sum(row["rollouts/groups"] for row in rows(run_config)) == 6, "all that was played is told of"
    fake.calls.clear()
    run(run_config)
    assert fake.calls == [f"resume {FINAL}"], "nothing is rolled out, trained or saved"
    assert f"is complete: {updates} of {updates} steps" in said(run_config)


# --- resuming ---------------------------------------------------------------------------------------------


def interrupt(fake: FakeService, run_config: train.Config, event: int) -> bool:
    """Cancel the run, as Ctrl-C does, at the n-th thing the service is asked; False if there are not so many.

    Samples in a row count once.
    """

    async def main() -> None:
        task = asyncio.ensure_future(train.main(run_config))
        count, last = 0, ""

        def watch(call: str) -> None:
            nonlocal count, last
            count += not call == last == "sample"
            last = call
            if count == event:
                task.cancel()

        fake.watch = watch
        async with asyncio.timeout(30):
            await task

    try:
        asyncio.run(main())
    except asyncio.CancelledError:
        return True
    finally:
        fake.watch = lambda _: None
    return False


@pytest.mark.parametrize("mode", IN_SUBSTEPS)
def test_ctrl_c_at_any_moment_tears_no_step_and_loses_no_group(fake, tmp_path, mode):
    per_step = IN_SUBSTEPS[mode].get("num_substeps", 1)
    event = 0
    while True:
        event += 1
        dataset = problems(2, 2, 2)
        folder = tmp_path / str(event)
        run_config = config(
            folder, dataset, save_every=2, num_groups_to_log=0, rollout_json_export=False, **IN_SUBSTEPS[mode]
        )
        if not interrupt(fake, run_config, event):
            break
        logging.getLogger().handlers.clear()
        saved = records(run_config)
        for record in saved:
            assert len(fake.stored[record["state_path"]]) == per_step * record["batch"]
        torn = "in the middle of step" in said(run_config)
        made = [row["step"] for row in rows(run_config)]
        run(run_config)
        assert groups(fake.stored[FINAL]) == every_place(dataset), event
        assert records(run_config)[-1]["batch"] == 3
        steps = [row["step"] for row in rows(run_config)]
        assert set(steps) == {0, 1, 2}
        if not torn and (saved or not made):
            assert steps == [0, 1, 2], "none is doubled"
    assert event > 12


@pytest.mark.parametrize("mode", MODES)
def test_a_run_that_failed_goes_on_from_its_checkpoint_with_all_groups_under_way(fake, tmp_path, mode):
    dataset = problems(2, 2, 2, 2, 2)
    run_config = config(tmp_path, dataset, **MODES[mode])
    steps = 0

    def watch(call: str) -> None:
        nonlocal steps
        steps += call.startswith("optim_step")
        if steps == 4:
            fake.fail["optim_step"] = RuntimeError("the server is gone")

    fake.watch = watch
    with pytest.raises(RuntimeError, match="the server is gone"):
        run(run_config)
    fake.watch = lambda _: None
    fake.fail.clear()
    (record,) = records(run_config)
    trained = groups(fake.stored[record["state_path"]])
    if "async" in mode:
        batch, index = record["cursor"]
        begun = [place for place in every_place(dataset) if place < f"{batch}.{index}"]
        pending = [f"{batch}.{index}" for batch, index, _ in record["pending"]]
        assert bool(pending) == bool(run_config.max_staleness), "sampled ahead"
        assert sorted(trained + pending) == begun
    fake.calls.clear()
    run(run_config)
    assert fake.calls[0] == f"resume {record['state_path']}"
    assert groups(fake.stored[FINAL]) == every_place(dataset)
    assert records(run_config)[-1]["batch"] == 5


@pytest.mark.parametrize("mode", MODES)
def test_raising_max_steps_goes_on(fake, tmp_path, mode):
    dataset = problems(2, 2, 2, 2)
    run(config(tmp_path, dataset, max_steps=2, **MODES[mode]))
    assert len(fake.stored[FINAL]) == 2
    longer = config(tmp_path, dataset, max_steps=3, **MODES[mode])
    run(longer)
    assert len(fake.stored[FINAL]) == 3
    run(config(tmp_path, dataset, **MODES[mode]))
    assert groups(fake.stored[FINAL]) == every_place(dataset)
    assert [row["step"] for row in rows(longer)] == [0, 1, 2, 3]
    fake.calls.clear()
    run(config(tmp_path, dataset, **MODES[mode]))
    assert fake.calls == [f"resume {FINAL}"]


def test_groups_under_way_cannot_be_forgotten_by_changing_the_mode(fake, tmp_path):
    run(config(tmp_path, problems(2, 2), max_steps=1, **MODES["async"]))
    with pytest.raises(ConfigurationError, match="set async_config again"):
        run(config(tmp_path, problems(2, 2)))


# --- what is measured and written -------------------------------------------------------------------------


class Updates(SamplingClientEvaluator):
    name = "updates"

    async def __call__(self, sampling_client: Any) -> dict[str, float]:
        return {"seen": len(sampling_client.weights)}


@pytest.mark.parametrize("mode", MODES)
def test_evaluations_see_the_weights_before_their_step_and_the_final_ones(fake, tmp_path, mode):
    run_config = config(
        tmp_path,
        problems(2, 2, 2),
        Problems([Problem(rewards=(1.0,)), Problem(rewards=(0.0,))]),
        eval_every=2,
        evaluator_builders=[Updates],
        **MODES[mode],
    )
    run(run_config)
    assert {row["step"]: row["seen"] for row in rows(run_config) if "seen" in row} == {0: 0, 2: 2, 3: 3}
    tests = [row["test/env/all/reward/total"] for row in rows(run_config) if "seen" in row]
    assert tests == [0.5] * 3
    folder = Path(run_config.log_path) / "iteration_000002"
    assert {path.name for path in folder.glob("eval_test*")} == {
        "eval_test.html",
        "eval_test_logtree.json",
        "eval_test_rollout_summaries.jsonl",
    }


def test_an_evaluation_is_not_lost_when_the_data_ends_at_its_step(fake, tmp_path):
    """Two groups of four are useless, so two planned steps are one."""
    batches = [[Problem(), Problem()], [Problem(rewards=(0.0, 0.0)), Problem(rewards=(0.0, 0.0))]]
    run_config = config(
        tmp_path,
        Problems(*batches),
        eval_every=1,
        evaluator_builders=[Updates],
        remove_constant_reward_groups=True,
        async_config=train.AsyncConfig(max_steps_off_policy=0, groups_per_batch=2),
    )
    run(run_config)
    seen = [(row["step"], row["seen"]) for row in rows(run_config) if "seen" in row]
    assert seen[0] == (0, 0)
    assert set(seen[1:]) == {(1, 1)}


def test_figures_stay_with_their_groups_and_describe_the_whole_batch(fake, tmp_path):
    batch = [
        Problem(rewards=(1.0, 1.0), tags=["easy"]),
        Problem(rewards=(0.0, 1.0), tags=["middle"]),
        Problem(rewards=(0.0, 0.25, 0.5, 0.25), tags=["hard"]),
    ]
    run_config = config(tmp_path, Problems(batch), remove_constant_reward_groups=True)
    run(run_config)
    (row,) = rows(run_config)
    assert row["env/easy/reward/total"] == 1.0
    assert row["env/middle/reward/total"] == 0.5
    assert row["env/hard/reward/total"] == 0.25
    assert row["env/all/reward/total"] == 0.5
    assert row["env/all/by_group/frac_all_good"] == pytest.approx(1 / 3)
    assert row["rollouts/groups"] == 3
    assert row["rollouts/groups_trained_on"] == 2
    assert groups(fake.stored[FINAL]) == ["0.1", "0.2"]


@pytest.mark.parametrize("mode", MODES)
def test_a_row_has_the_figures_of_its_step(fake, tmp_path, mode):
    run_config = config(tmp_path, problems(2, 2), compute_post_kl=True, **MODES[mode])
    run(run_config)
    row = rows(run_config)[1]
    expected = {
        "progress/batch": 1,
        "progress/done_frac": 1.0,
        "optim/lr": 1e-3,
        "optim/kl_sample_train_v1": 0.0,
        "optim/kl_sample_train_v2": 0.0,
        "optim/entropy": 1.0,
        "optim/logprob_gap_max": 0.0,
        "kl_pre_post_v1": 1.0,
        "kl_pre_post_v2": 0.5,
        "env/all/total_episodes": 4,
        "env/all/ac_tokens_per_turn": 2.0,
        "sampling_client/step_max": 0 if "async" in mode else 1,
    }
    if "async" in mode:  # begun ahead, or with the newest weights
        expected.pop("sampling_client/step_max")
    assert {key: row[key] for key in expected} == expected
    shares = [row[f"time/frac_{what}"] for what in ("sampling", "training", "waiting")]
    assert all(0 <= share <= 1 for share in shares)
    assert sum(shares) >= 0.999
    assert row["speed/sampled_tokens_per_s"] > 0
    assert row["time/total"] > 0
    folder = Path(run_config.log_path)
    assert {path.name for path in (folder / "iteration_000001").iterdir()} == {
        "train.html",
        "train_logtree.json",
        "train_rollout_summaries.jsonl",
    }


def test_reports_and_summaries_can_be_left_out(fake, tmp_path):
    run_config = config(tmp_path, problems(1), num_groups_to_log=0, rollout_json_export=False)
    run(run_config)
    assert not list(Path(run_config.log_path).glob("iteration_*"))


def test_the_penalty_needs_a_reference_and_uses_it(fake, tmp_path):
    with pytest.raises(ConfigurationError, match=r"kl_reference_config\.base_model=fake/model"):
        config(tmp_path, problems(1), kl_penalty_coef=0.1)
    assert fake.calls == []
    reference = train.KLReferenceConfig(base_model="fake/base")
    run_config = config(tmp_path, problems(1), kl_penalty_coef=0.1, kl_reference_config=reference)
    run(run_config)
    assert "sampler fake/base" in fake.calls
    assert rows(run_config)[0]["kl_policy_base"] == 1.0  # -1 less -2, for every token
    _, _, (datum, _) = fake.sent[0]
    assert datum.loss_fn_inputs["advantages"].data == [0.0, 0.0, -0.5, -0.5], "all depart alike"


def test_importance_weights_go_into_what_is_sent_and_the_figures_keep_the_samplers_logprobs(fake, tmp_path):
    """The trainer says -1 for every token, as the sampler: the weights are 1."""
    run_config = config(tmp_path, problems(1), max_importance_weight=2.0)
    run(run_config)
    (row,) = rows(run_config)
    assert (row["optim/importance_weight_mean"], row["optim/importance_weights_cut"]) == (1.0, 0.0)
    assert "forward after 0 updates" in fake.calls
    _, _, (datum, _) = fake.sent[0]
    assert datum.loss_fn_inputs["logprobs"].data == [0.0, 0.0, -1.0, -1.0]


# --- what goes wrong --------------------------------------------------------------------------------------


class BrokenEnvError(Exception):
    pass


async def breaks() -> None:
    raise BrokenEnvError("the env is broken")


async def hangs() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("mode", MODES)
def test_an_env_that_raises_ends_the_run_with_its_own_error(fake, tmp_path, mode):
    dataset = Problems([Problem(before=hangs), Problem(before=breaks)], [Problem(before=hangs), Problem()])
    run_config = config(tmp_path, dataset, **MODES[mode])
    with pytest.raises(BrokenEnvError, match="the env is broken") as raised:
        run(run_config)
    assert "in breaks" in "".join(traceback.format_tb(raised.value.__traceback__))
    assert dataset.batches[0][0].cleanups == dataset.batches[0][1].cleanups == 1
    assert "The run failed" in said(run_config)


def counted(run_config: train.Config, name: str) -> float:
    return sum(row.get(name, 0) for row in rows(run_config))


@pytest.mark.parametrize("mode", MODES)
def test_or_is_tolerated_and_counted(fake, tmp_path, mode):
    dataset = Problems([Problem(), Problem(before=breaks)], [Problem(), Problem()])
    run_config = config(
        tmp_path, dataset, rollout_error_tolerance=MinViableGroup(max_retries=1), **MODES[mode]
    )
    run(run_config)
    assert groups(fake.stored[FINAL]) == ["0.0", "1.0", "1.1"]
    assert counted(run_config, "rollout_errors/groups_skipped") == 1
    assert counted(run_config, "rollout_errors/BrokenEnvError") >= 2


@pytest.mark.parametrize("mode", MODES)
def test_an_env_that_hangs_is_named_or_left_out(fake, tmp_path, mode):
    dataset = Problems([Problem(), Problem(before=hangs)], [Problem(), Problem()])
    limited = {"group_timeout_seconds": 0.05, **MODES[mode]}
    with pytest.raises(TrainingError, match=r"group_timeout_seconds=0\.05.*rollout_error_tolerance=True"):
        run(config(tmp_path, dataset, **limited))
    assert dataset.batches[0][1].cleanups == 1
    tolerant = config(tmp_path / "tolerant", dataset, rollout_error_tolerance=True, **limited)
    run(tolerant)
    assert groups(fake.stored[FINAL]) == ["0.0", "1.0", "1.1"]
    assert counted(tolerant, "rollout_errors/TimeoutError") == 1


def test_an_env_that_hangs_in_the_test_set_is_named_too(fake, tmp_path):
    test = Problems([Problem(before=hangs)])
    run_config = config(tmp_path, problems(1), test, eval_every=1, group_timeout_seconds=0.05)
    with pytest.raises(TrainingError, match=r"group_timeout_seconds=0\.05"):
        run(run_config)


def test_a_reward_that_is_no_number_is_refused(fake, tmp_path):
    with pytest.raises(EnvError, match="nan"):
        run(config(tmp_path, problems(1, rewards=(0.0, float("nan")))))
    assert not optimizer_steps(fake)


def test_an_empty_observation_is_refused(fake, tmp_path):
    with pytest.raises(EnvError, match="empty observation"):
        run(config(tmp_path, problems(1, prompt=[])))


def test_an_observation_longer_than_the_context_ends_its_episode_and_not_the_run(fake, tmp_path):
    fake.context_window = 8
    long = Problem(prompt=list(range(9)))
    run_config = config(tmp_path, Problems([long, Problem()]))
    run(run_config)
    assert groups(fake.stored[FINAL]) == ["0.1"]
    assert rows(run_config)[0]["env/all/stop/context_overflow"] == 0.5
    fake.asked.clear()
    run(config(tmp_path / "tight", problems(1), context_window=4))
    assert {each.max_tokens for each in fake.asked} == {1}, "the config knows better"


def test_a_group_of_one_is_warned_of_and_can_be_trained_on(fake, tmp_path):
    alone = config(tmp_path, problems(1, rewards=(1.0,)))
    run(alone)
    assert "set advantage=reward" in said(alone)
    assert fake.sent[0][2][0].loss_fn_inputs["advantages"].data == [0.0] * 4
    fake.sent.clear()
    as_reward = config(tmp_path / "reward", problems(1, rewards=(1.0,)), advantage="reward")
    run(as_reward)
    assert "set advantage=reward" not in said(as_reward)
    assert fake.sent[0][2][0].loss_fn_inputs["advantages"].data == [0.0, 0.0, 1.0, 1.0]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_group_of_none_is_refused(fake, tmp_path, mode):
    with pytest.raises(EnvError, match="no environment"):
        run(config(tmp_path, problems(2, rewards=()), **MODES[mode]))


def test_a_data_set_of_nothing_is_refused(fake, tmp_path):
    with pytest.raises(ConfigurationError, match="Problems has no batch"):
        run(config(tmp_path, Problems()))
    with pytest.raises(ConfigurationError, match="no groups"):
        run(config(tmp_path, problems(0), **MODES["async"]))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("batch", [None, ["a string"]])
def test_a_batch_of_something_else_is_refused(fake, tmp_path, mode, batch):
    class Odd(Problems):
        def get_batch(self, index: int) -> Any:
            return batch

    with pytest.raises(DataError, match="batch 0 of Odd"):
        run(config(tmp_path, Odd([Problem()]), **MODES[mode]))


def test_an_executor_is_used_and_shut_down_whatever_happens(fake, tmp_path):
    class Pool(ThreadPoolExecutor):
        ended = False

        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            self.ended = True
            super().shutdown(wait, cancel_futures=cancel_futures)

    pool = Pool(2)
    dataset = problems(2)
    run(config(tmp_path, dataset), rollout_executor=pool)
    assert groups(fake.stored[FINAL]) == every_place(dataset)
    assert pool.ended
    pool = Pool(2)
    with pytest.raises(BrokenEnvError):
        run(config(tmp_path / "b", problems(1, before=breaks)), rollout_executor=pool)
    assert pool.ended
    assert get_rollout_executor() is None


# --- for loops of one's own -------------------------------------------------------------------------------


def test_prepare_minibatch_and_train_step(fake, tmp_path):
    async def main() -> None:
        from tests.tinker_cookbook.rl.test_data_processing import group
        from tinker_cookbook.tokenizer_utils import get_tokenizer

        client: Any = await fake.create_lora_training_client_async("fake/model")
        builders = [Problem(tags=["a"]), Problem(tags=["b"])]
        data_D, metrics = await train.prepare_minibatch(
            builders, [group(0.0, 1.0), group(1.0, 1.0)], get_tokenizer("fake/model"), None, 0.0, 0.0
        )
        assert len(data_D) == 4
        assert metrics["env/a/reward/total"] == 0.5
        answered: dict[str, Any] = {}
        logprobs_D = await train.train_step(
            data_D, client, 1e-3, 3, "importance_sampling", {"x": 1}, metrics=answered
        )
        assert [len(logprobs_T) for logprobs_T in logprobs_D] == [3] * 4
        assert [len(data) for _, _, data in fake.sent] == [1, 1, 2]
        assert answered["optim/loss:sum"] == 3.0
        assert await train.train_step([], client, 1e-3, 3, "importance_sampling") == []
        adam: tinker.AdamParams = fake.adam[0]
        assert (adam.beta1, adam.beta2, adam.eps) == (0.9, 0.95, 1e-8)

    asyncio.run(main())


def test_gather_with_progress_keeps_the_order(capsys):
    async def gives(value: int, turns: int) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        return value

    async def main() -> list[int]:
        return await train.gather_with_progress([gives(1, 9), gives(2, 1)], "waiting")

    assert asyncio.run(main()) == [1, 2]
    assert "waiting: 100%" in capsys.readouterr().err
