"""The command, on the real engine, and which data a name means."""

import json

import pytest

from tests.tinker_cookbook.recipes.runs import checkpoints_of, metrics_of
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes.math_rl.arithmetic_env import ArithmeticDatasetBuilder
from tinker_cookbook.recipes.math_rl.math_env import MathDatasetBuilder
from tinker_cookbook.recipes.math_rl.train import CLIConfig, build_config, cli_main


def test_a_few_steps_of_sums(engine, tmp_path):
    cli_main(
        CLIConfig(
            log_path=str(tmp_path / "run"),
            max_steps=2,
            groups_per_batch=4,
            group_size=4,
            lora_rank=8,
            test_size=8,
            save_every=0,
        )
    )
    rows = metrics_of(tmp_path / "run")
    assert 0 <= rows[0]["test/env/all/correct"] <= 1
    assert rows[0]["env/all/format"] > 0.5  # 16 tokens are enough for a number
    assert checkpoints_of(tmp_path / "run")[-1]["batch"] == 2


def test_a_file_of_problems(engine, tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text(
        "".join(json.dumps({"question": f"{i}+{i}?", "answer": str(2 * i)}) + "\n" for i in range(8))
    )
    cli = CLIConfig(
        env="problems",
        train_data=str(file),
        test_size=2,
        groups_per_batch=3,
        group_size=2,
        max_tokens=8,
        lora_rank=8,
        save_every=0,
    )
    cli_main(cli)
    rows = metrics_of(build_config(cli).log_path)
    assert rows[-1]["step"] == 2
    assert rows[0]["env/all/correct"] == 0.0  # the tiny model knows no boxes


def test_what_is_set_reaches_the_run():
    config = build_config(
        CLIConfig(
            env="math",
            model_name="Qwen/Qwen3-8B",
            temperature=0.7,
            save_every=3,
            eval_every=4,
            seed=5,
            kl_penalty_coef=0.1,
            max_steps_off_policy=2,
            groups_per_batch=32,
            num_minibatches=4,
            grader="math_verify",
            grader_timeout=2.0,
            fewshot=False,
        )
    )
    assert (config.temperature, config.save_every, config.eval_every, config.seed) == (0.7, 3, 4, 5)
    assert config.renderer_name == "qwen3"
    assert config.max_tokens == 2048
    assert config.kl_reference_config is not None
    assert config.async_config is not None
    assert config.async_config.max_steps_off_policy == 2
    assert config.stream_minibatch_config is not None
    assert config.stream_minibatch_config.num_minibatches == 4
    builder = config.dataset_builder
    assert isinstance(builder, MathDatasetBuilder)
    assert (builder.grader, builder.timeout, builder.convo_prefix) == ("math_verify", 2.0, None)
    assert (builder.batch_size, builder.group_size, builder.seed) == (32, 8, 5)


def test_sums_are_asked_of_a_thinking_model_without_thinking():
    config = build_config(CLIConfig(model_name="Qwen/Qwen3-8B"))
    assert (config.renderer_name, config.max_tokens) == ("qwen3_disable_thinking", 16)
    builder = config.dataset_builder
    assert isinstance(builder, ArithmeticDatasetBuilder)
    assert (builder.system_prompt, builder.largest) == (None, 100)


def test_the_tiny_model_thinks_before_it_adds():
    config = build_config(CLIConfig())
    builder = config.dataset_builder
    assert isinstance(builder, ArithmeticDatasetBuilder)
    assert (builder.system_prompt, builder.largest, config.max_tokens) == ("Think first.", 30, 64)


def test_mistakes_are_said():
    with pytest.raises(ConfigurationError, match="arithmetic, gsm8k, math"):
        build_config(CLIConfig(env="algebra"))
    with pytest.raises(ConfigurationError, match="env=problems"):
        build_config(CLIConfig(train_data="mine.jsonl"))
