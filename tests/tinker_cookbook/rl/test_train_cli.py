"""What the command decides and refuses; that it trains is in test_train_cli_engine and test_exact."""

import json
import re
from types import SimpleNamespace
from typing import Any

import chz
import pytest

from tests.tinker_cookbook.rl.tiny import MODEL
from tinker_cookbook import hyperparam_utils, service
from tinker_cookbook.cli_utils import LogdirBehavior
from tinker_cookbook.command_settings import HANDED_ON
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.rl import cli_settings, train, train_cli
from tinker_cookbook.rl.env_names import ENVS
from tinker_cookbook.rl.train_cli import CLIConfig, build_config, default_log_path
from tinker_cookbook.utils.config_dump import dump_config


@pytest.fixture(autouse=True)
def served(monkeypatch) -> list[Any]:
    models = [SimpleNamespace(model_name=MODEL, max_context_length=1024, trainable=True)]

    class Fake:
        def get_server_capabilities(self) -> Any:
            return SimpleNamespace(supported_models=models)

    monkeypatch.setattr(service, "connect", lambda *_: Fake())
    return models


def test_everything_can_be_left_open():
    config = build_config(CLIConfig())
    assert (config.model_name, config.renderer_name, config.context_window) == (MODEL, "chatml", 1024)
    assert config.learning_rate == pytest.approx(hyperparam_utils.get_lr(MODEL))
    assert config.log_path == "runs/rl-arithmetic-tiny-chat"
    assert (config.max_tokens, config.max_steps) == (64, 44)
    builder: Any = config.dataset_builder
    assert (builder.task, builder.batch_size, builder.group_size, builder.n_batches) == (
        "arithmetic",
        32,
        8,
        44,
    )
    assert config.async_config is config.stream_minibatch_config is config.kl_reference_config is None


def test_what_is_given_reaches_the_run():
    cli = CLIConfig(
        env="multiplication",
        env_options=("largest=12",),
        batch_size=8,
        group_size=3,
        max_steps=5,
        test_size=9,
        seed=4,
        learning_rate=1e-5,
        max_tokens=7,
        loss_fn="ppo",
        loss_options=("clip_high_threshold=1.3",),
        kl_penalty_coef=0.1,
        max_steps_off_policy=2,
        dynamic_sampling=True,
        num_minibatches=4,
        num_substeps=2,
    )
    config = build_config(cli)
    builder: Any = config.dataset_builder
    fields = ("operation", "largest", "batch_size", "group_size", "n_batches", "test_size", "seed")
    made_of = 5 * 4  # batches for as many steps, of which some groups are replaced
    assert [getattr(builder, name) for name in fields] == ["*", 12, 8, 3, made_of, 9, 4]
    assert (config.learning_rate, config.max_tokens, config.max_steps, config.seed) == (1e-5, 7, 5, 4)
    assert (config.loss_fn, config.loss_fn_config) == ("ppo", {"clip_high_threshold": 1.3})
    assert config.kl_reference_config == train.KLReferenceConfig(base_model=MODEL)
    assert config.async_config == train.AsyncConfig(max_steps_off_policy=2, groups_per_batch=8)
    assert config.stream_minibatch_config == train.StreamMinibatchConfig(
        groups_per_batch=8, num_minibatches=4
    )


def test_every_field_of_the_same_name_is_handed_on():
    """Those that are not are named here: what the command line makes of them is tested above."""
    shared = chz.chz_fields(CLIConfig).keys() & chz.chz_fields(train.Config).keys()
    decided = {"log_path", "model_name", "renderer_name", "learning_rate", "max_tokens", "num_substeps"}
    assert shared - {*cli_settings.SAME, *HANDED_ON} == decided


@pytest.mark.parametrize(
    ("env", "model", "path"),
    [
        ("data/my.jsonl", "tinker-engine/tiny-chat", "runs/rl-my-tiny-chat"),
        ("reasoning_gym/chain_sum", "Qwen/Qwen3-8B:peft:131072", "runs/rl-chain_sum-Qwen3-8B"),
        ("my.envs:Mine", "a/b", "runs/rl-my.envs-Mine-b"),
    ],
)
def test_the_log_path_is_made_of_names(env, model, path):
    assert default_log_path(env, model) == path


# --- the log directory ------------------------------------------------------------------------------------


def test_a_run_of_ours_is_resumed_or_deleted_and_another_kind_is_refused(tmp_path, monkeypatch):
    trained: list[bool] = []

    async def main(config: train.Config) -> None:
        trained.append(log.exists())

    monkeypatch.setattr(train, "main", main)
    log = tmp_path / "log"
    log.mkdir()
    config = build_config(CLIConfig(log_path=str(log)))
    (log / "config.json").write_text(json.dumps(dump_config(config)))
    behaviors: list[LogdirBehavior] = ["resume", "delete"]
    for behavior in behaviors:
        train_cli.run(CLIConfig(log_path=str(log), behavior_if_log_dir_exists=behavior))
    assert trained == [True, False]
    log.mkdir()
    (log / "config.json").write_text('{"__class__": "tinker_cookbook.supervised.train.Config"}')
    with pytest.raises(ConfigurationError, match="run of another kind"):
        train_cli.run(CLIConfig(log_path=str(log), behavior_if_log_dir_exists="delete"))
    assert (log / "config.json").exists()


# --- help and errors --------------------------------------------------------------------------------------


def test_help_lists_the_environments_and_has_a_line_for_every_field(capsys):
    assert train_cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name in (*ENVS, "reasoning_gym/TASK", "FILE", "module:Builder"):
        assert re.search(rf"^  {name} +\S.*$", shown, re.M), name
    for name in chz.chz_fields(CLIConfig):
        assert re.search(rf"^  {name} .*( - |default\)) +\w.{{10,110}}$", shown, re.M), name


@pytest.mark.parametrize(
    ("argument", "line"),
    [
        ("env=arithmetik", r"there is no env 'arithmetik'; give module:Builder .* or one of arithmetic, .*"),
        ("env=absent:Mine", r"env=absent:Mine: No module named 'absent'; is it on PYTHONPATH, .*\?"),
        ("env_options=largst=9", r"env arithmetic has no option largst; it has task, .*"),
        ("env_options=largest", r"'largest' is no option: write name=value, .*"),
        ("model_name=a/b", r"the server has no model a/b; it has tinker-engine/tiny-chat"),
        ("advantage=best", r".*best.*group_mean.*"),
        ("batch_size=0", r"batch_size=0 must be at least 1"),
        ("max_steps=0", r"max_steps=0 must be at least 1.*"),
    ],
)
def test_an_error_of_the_user_is_one_line(argument, line, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert train_cli.main([argument]) == 1
    assert re.fullmatch(rf"error: {line}\n", capsys.readouterr().err)
    assert not list(tmp_path.iterdir()), "nothing is left behind"
