"""The pipeline: all stages at once, one of them alone, and going on after each."""

import shutil
from pathlib import Path

import pytest

from tests.tinker_cookbook.recipes.runs import checkpoints_of, metrics_of
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes.preference.rlhf.rlhf_pipeline import blueprint_for, cli_main
from tinker_cookbook.recipes.preference.rlhf.settings import CLIConfig
from tinker_cookbook.recipes.preference.rlhf.stages import rl_config, rm_config, sft_config


def small(log_path: Path, **fields) -> CLIConfig:
    sizes = {
        "batch_size": 8,
        "lora_rank": 4,
        "sft_max_steps": 1,
        "rm_max_steps": 1,
        "rl_max_steps": 1,
        "rl_batch_size": 2,
        "rl_group_size": 4,
        "rl_max_tokens": 12,
        "rl_substeps": 1,
        "eval_size": 3,
        "eval_every": 5,
        "behavior_if_log_dir_exists": "resume",
    }
    return CLIConfig(log_path=str(log_path), **(sizes | fields))


def final(log_path: Path) -> dict:
    (found,) = [row for row in checkpoints_of(log_path) if row.get("final")]
    return found


def steps(log_path: Path, metric: str) -> list[int]:
    return [row["step"] for row in metrics_of(log_path) if metric in row]


@pytest.mark.long
def test_stages_at_once_then_the_last_one_alone(engine, tmp_path, capsys):
    cli_main(small(tmp_path / "run"))
    sft, rm, rl = (tmp_path / "run" / stage for stage in ("sft", "rm", "rl"))
    assert steps(rm, "judge/accuracy") == [0, 1]
    for judge in ("judge", "rule"):
        rates = [row[f"{judge}/win_rate"] for row in metrics_of(rl) if f"{judge}/win_rate" in row]
        assert len(rates) == 2
        assert all(0 <= rate <= 1 for rate in rates)
    said = capsys.readouterr().out
    for figure in ("test/nll", "judge/accuracy", "judge/win_rate", "rule/win_rate"):
        assert f"{figure} " in said

    kept = [(folder / "checkpoints.jsonl").read_text() for folder in (sft, rm)]
    before = final(rl)["state_path"]
    cli_main(small(tmp_path / "run", run_sft=False, run_rm=False, behavior_if_log_dir_exists="delete"))
    assert [(folder / "checkpoints.jsonl").read_text() for folder in (sft, rm)] == kept
    assert final(rl)["state_path"] != before


@pytest.mark.long
def test_going_on_after_a_stage_and_within_one(engine, tmp_path):
    run = tmp_path / "run"
    cli_main(small(run, run_rm=False, run_rl=False, eval_every=0))
    cli_main(small(run, sft_max_steps=2, run_rl=False, eval_every=0))
    assert steps(run / "sft", "train_mean_nll") == [0, 1]
    assert steps(run / "rm", "train_mean_nll") == [0]

    shutil.rmtree(run / "rm")
    given = {
        "run_sft": False,
        "run_rm": False,
        "sft_checkpoint": checkpoints_of(run / "sft")[-1]["state_path"],
        "rm_checkpoint": checkpoints_of(run / "sft")[-1]["sampler_path"],  # any weights can be asked
        "eval_every": 0,
        "verdict": "logprob",
    }
    cli_main(small(tmp_path / "other", **given))
    cli_main(small(tmp_path / "other", **given, rl_max_steps=2))
    assert steps(tmp_path / "other" / "rl", "env/all/reward/total") == [0, 1]
    assert not (tmp_path / "other" / "sft").exists()

    elsewhere = given | {"sft_checkpoint": checkpoints_of(run / "sft")[0]["state_path"]}
    with pytest.raises(ConfigurationError, match="was begun from"):
        cli_main(small(tmp_path / "other", **elsewhere))


def test_what_is_missing_is_said_before_anything_trains(tmp_path):
    with pytest.raises(ConfigurationError, match=r"rm has no finished stage: set run_rm=True"):
        cli_main(small(tmp_path / "run", run_rm=False))
    assert not (tmp_path / "run" / "sft").exists()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"run_sft": False, "run_rm": False, "run_rl": False}, "nothing is to run"),
        ({"sft_checkpoint": "tinker://x"}, "set run_sft=False"),
        ({"rm_checkpoint": "tinker://x"}, "set run_rm=False"),
        ({"eval_size": 0}, "eval_size"),
    ],
)
def test_settings_that_contradict_each_other(fields, words):
    with pytest.raises(ConfigurationError, match=words):
        CLIConfig(**fields)


def test_another_model_takes_the_full_settings():
    tiny = blueprint_for().make()
    assert (tiny.sft_dataset, tiny.comparisons) == ("tiny", "tiny")
    full = blueprint_for("Qwen/Qwen3-8B").apply({"rl_learning_rate": 5.0}).make()
    assert (full.sft_dataset, full.comparisons, full.lora_rank, full.batch_size) == (
        "no_robots",
        "hhh",
        64,
        256,
    )
    assert full.rl_learning_rate == 5.0
    assert (sft_config(full).learning_rate, rm_config(full).learning_rate) == (2e-4, 3e-4)
    config = rl_config(full, sft_path="tinker://a", rm_path="tinker://b")
    assert (config.load_checkpoint_path, config.max_tokens) == ("tinker://a", 1024)
    assert len({each.log_path for each in (sft_config(full), rm_config(full), config)}) == 3
