import pytest

from tests.tinker_cookbook.recipes.runs import checkpoints_of, metrics_of
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes import sl_basic
from tinker_cookbook.recipes.chat_sl.chat_datasets import KnightBuilder, NoRobotsBuilder
from tinker_cookbook.supervised.types import ChatDatasetBuilder


@pytest.mark.long
def test_the_small_variant_learns_in_a_few_steps_and_goes_on(engine, tmp_path):
    blueprint = sl_basic.build_config_blueprint()
    words = [f"log_path={tmp_path / 'run'}", "lora_rank=8", "eval_every=4", "save_every=0"]
    sl_basic.main(blueprint.clone().make_from_argv([*words, "max_steps=4"]))
    again = [*words, "max_steps=6", "behavior_if_log_dir_exists=resume"]
    sl_basic.main(blueprint.clone().make_from_argv(again))
    rows = metrics_of(tmp_path / "run")
    assert sorted({row["step"] for row in rows}) == [0, 1, 2, 3, 4, 5, 6]
    evaluated = [row["test/nll"] for row in rows if "test/nll" in row]
    assert evaluated[-1] < 0.8 * evaluated[0]
    assert rows[0]["test/in_style"] == 0.0
    assert [each["name"] for each in checkpoints_of(tmp_path / "run")] == ["final", "final"]


def test_nobody_to_ask_about_a_log_path_that_exists(tmp_path):
    config = sl_basic.build_config_blueprint().make_from_argv([f"log_path={tmp_path}"])
    with pytest.raises(ConfigurationError, match="behavior_if_log_dir_exists=resume"):
        sl_basic.main(config)


def test_fields_of_the_data_can_be_given_on_the_command_line():
    words = ["dataset_builder.common_config.batch_size=8", "dataset_builder.tellings=2"]
    data = sl_basic.build_config_blueprint().make_from_argv(words).dataset_builder
    assert isinstance(data, KnightBuilder)
    assert (data.common_config.batch_size, data.tellings) == (8, 2)


@pytest.mark.parametrize(
    ("model_name", "builder", "renderer"),
    [
        ("tinker-engine/tiny-chat", KnightBuilder, "chatml"),
        ("Qwen/Qwen3-8B", NoRobotsBuilder, "qwen3"),
    ],
)
def test_data_and_renderer_follow_the_model(model_name, builder, renderer):
    config = sl_basic.build_config_blueprint(model_name).make()
    assert type(config.dataset_builder) is builder
    assert isinstance(config.dataset_builder, ChatDatasetBuilder)
    common = config.dataset_builder.common_config
    assert (common.model_name_for_tokenizer, common.renderer_name) == (model_name, renderer)
    assert config.renderer_name == renderer
