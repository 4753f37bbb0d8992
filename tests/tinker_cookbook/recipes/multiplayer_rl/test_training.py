"""A few steps of each recipe on the engine."""

import math

import pytest

from tests.tinker_cookbook.recipes.runs import checkpoints_of, metrics_of
from tinker_cookbook.recipes.multiplayer_rl.guess_number import train as guess_number
from tinker_cookbook.recipes.multiplayer_rl.text_arena import train as text_arena
from tinker_cookbook.recipes.multiplayer_rl.twenty_questions import train as twenty_questions

SMALL = {
    "groups_per_batch": 1,
    "group_size": 4,
    "n_batches": 2,
    "lora_rank": 4,
    "eval_every": 2,
    "test_games": 1,
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("recipe", "settings", "figures"),
    [
        (text_arena, {}, ["env/all/legal", "test/env/vs_random/win", "test/env/vs_optimal/loss"]),
        (
            text_arena,
            {"opponents": ("league",), "save_every": 1, "with_history": True},
            ["env/all/seat1/draw"],
        ),
        (guess_number, {"num_players": 3, "group_size": 6}, ["test/env/all/seat2/loss"]),
        (twenty_questions, {"max_turns": 4, "answerer": "base_model"}, ["test/env/all/win"]),
    ],
)
def test_a_few_steps(engine, tmp_path, recipe, settings, figures):
    path = tmp_path / "run"
    recipe.cli_main(recipe.CLIConfig(log_path=str(path), **{**SMALL, **settings}))
    rows = metrics_of(path)
    for name in figures:
        assert any(name in row for row in rows), (name, sorted(rows[-1]))
    assert all(math.isfinite(row["env/all/reward/total"]) for row in rows if "env/all/reward/total" in row)
    assert checkpoints_of(path)[-1]["batch"] == 2


def test_other_models_are_told_how_it_goes():
    config = guess_number.build_config(guess_number.CLIConfig(model_name="Qwen/Qwen3-8B"))
    builder = config.dataset_builder
    assert builder.explain  # pyright: ignore[reportAttributeAccessIssue]
    assert builder.log_path == config.log_path  # pyright: ignore[reportAttributeAccessIssue]
    board = text_arena.build_config(text_arena.CLIConfig(model_name="Qwen/Qwen3-8B")).dataset_builder
    (told,) = board.maker("train")(0).news(0)  # pyright: ignore[reportAttributeAccessIssue]
    assert "in square brackets, such as [4]" in told["content"]


def test_games_for_two_are_learned_at_a_lower_rate_unless_one_is_given():
    usual = guess_number.build_config(guess_number.CLIConfig()).learning_rate
    assert text_arena.build_config(text_arena.CLIConfig()).learning_rate == pytest.approx(usual / 2)
    assert text_arena.build_config(text_arena.CLIConfig(learning_rate=0.25)).learning_rate == 0.25
