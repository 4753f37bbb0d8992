from typing import Any

import pytest

from tests.tinker_cookbook.recipes.runs import checkpoints_of, metrics_of
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes import rl_basic
from tinker_cookbook.recipes.math_rl.math_env import Gsm8kDatasetBuilder
from tinker_cookbook.rl.task_env import TaskRLDatasetBuilder


def test_a_few_steps_from_the_command_line(engine, tmp_path):
    small = [f"dataset_builder.{name}" for name in ("batch_size=3", "group_size=4", "test_size=4")]
    words = [f"log_path={tmp_path / 'run'}", *small, "lora_rank=4", "max_tokens=8", "max_steps=2"]
    rl_basic.main_from_argv([*words, "eval_every=2", "num_groups_to_log=1"])
    rows = metrics_of(tmp_path / "run")
    assert {row["step"] for row in rows if "env/all/correct" in row} == {0, 1}
    assert {row["step"] for row in rows if "test/env/all/correct" in row} == {0, 2}
    assert checkpoints_of(tmp_path / "run")[-1]["batch"] == 2


def test_nobody_to_ask_about_a_log_path_that_exists(tmp_path):
    with pytest.raises(ConfigurationError, match="behavior_if_log_dir_exists=resume"):
        rl_basic.main_from_argv([f"log_path={tmp_path}"])


@pytest.mark.parametrize(
    ("model_name", "builder", "renderer"),
    [
        ("tinker-engine/tiny-chat", TaskRLDatasetBuilder, "chatml"),
        ("Qwen/Qwen3-8B", Gsm8kDatasetBuilder, "qwen3"),
    ],
)
def test_data_and_renderer_follow_the_model(model_name, builder, renderer):
    config = rl_basic.build_config_blueprint(model_name).make()
    data: Any = config.dataset_builder
    assert type(data) is builder
    assert (data.model_name_for_tokenizer, data.renderer_name) == (model_name, renderer)
    assert config.renderer_name == renderer
