"""Sweep a recipe over learning rates, ranks and batch sizes; then a table and a plot.

python -m tinker_cookbook.recipes.chat_sl.sweep                                    # the tiny model
python -m tinker_cookbook.recipes.chat_sl.sweep recipe=sft base.model_name=Qwen/Qwen3-8B base.dataset=tulu3 \\
    learning_rates=1e-4,3e-4,1e-3 lora_ranks=32,128 max_parallel=4

Arguments that begin with base. are those of the recipe. The same command again goes on with what is not finished.
"""

import functools
import importlib
import logging
import sys
from collections.abc import Sequence
from typing import Any

import chz

from tinker_cookbook.command_line import run_command
from tinker_cookbook.exceptions import ConfigurationError, TrainingError
from tinker_cookbook.recipes.chat_sl.sweep import analyze
from tinker_cookbook.recipes.chat_sl.sweep.results import collect_rows
from tinker_cookbook.recipes.chat_sl.sweep.running import MainFn, run
from tinker_cookbook.recipes.launch import TINY_MODEL, example_path

RECIPES = {
    "sft": "tinker_cookbook.recipes.chat_sl.train",
    "distillation": "tinker_cookbook.recipes.prompt_distillation.train",
    "dpo": "tinker_cookbook.recipes.preference.dpo.train",
    "shorter": "tinker_cookbook.recipes.preference.shorter.train",
}
ENTRY_POINTS = (("CLIConfig", "cli_main"), ("ExperimentConfig", "run_experiment"))


LEARNING_RATES = (1e-5, 3e-5, 1e-4, 3e-4, 5e-4, 1e-3)
LORA_RANKS = (32, 128)
TINY_LEARNING_RATES = (1e-3, 3e-3, 1e-2, 3e-2)
TINY_LORA_RANKS = (8, 32)


@chz.chz
class Config:
    recipe: str = chz.field(
        default="sft", doc=f"{', '.join(RECIPES)}, or a module with CLIConfig and cli_main"
    )
    learning_rates: list[float] | None = chz.field(
        default=None,
        doc="Of the grid, with commas between; None: 1e-5 to 1e-3, for the tiny model 1e-3 to 3e-2",
    )
    lora_ranks: list[int] | None = chz.field(
        default=None, doc="Of the grid; None: 32,128, for the tiny model 8,32"
    )
    batch_sizes: list[int] | None = chz.field(default=None, doc="Of the grid; None: the recipe's own")
    training_budget_examples: int | None = chz.field(
        default=None, doc="Examples that each run sees at most, whatever its batch size; None: all there are"
    )
    sweep_dir: str | None = chz.field(
        default=None, doc="Folder of the runs; None: named after recipe and model"
    )
    max_parallel: int = chz.field(default=1, doc="Runs at a time, all against one server")
    skip_existing: bool = chz.field(default=True, doc="Do not start again what is finished")
    metric: str | None = chz.field(
        default=None, doc="What to compare by; None: test/nll, else train_mean_nll"
    )


def main(argv: Sequence[str]) -> None:
    if "--help" in argv:
        _help(argv)
    base = [word.removeprefix("base.") for word in argv if word.startswith("base.")]
    config = chz.entrypoint(Config, argv=[word for word in argv if not word.startswith("base.")])
    config_class, main_fn = find_recipe(config.recipe)
    base_config = chz.entrypoint(config_class, argv=base)
    sweep_dir = config.sweep_dir or example_path("sweep", config.recipe, base_config.model_name)
    run(
        _within_budget(main_fn, config, base_config),
        base_config,
        sweep_dir=sweep_dir,
        max_parallel=config.max_parallel,
        skip_existing=config.skip_existing,
        **_axes(config, base_config.model_name),
    )
    analyze.main(analyze.Config(sweep_dir=sweep_dir, metric=config.metric))
    if failed := [row["name"] for row in collect_rows(sweep_dir) if row["status"] != "done"]:
        raise TrainingError(
            f"{len(failed)} runs are not done: {', '.join(failed)}. The same command again goes on with them."
        )


def find_recipe(name: str) -> tuple[type, MainFn]:
    """The config class and the main function of a recipe that is named by an alias or by its module."""
    module_name = RECIPES.get(name, name)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise  # the recipe is there and lacks something
        raise ConfigurationError(
            f"recipe={name}: there is no such module; use {', '.join(RECIPES)} or the name of a module"
        ) from error
    for config_name, main_name in ENTRY_POINTS:
        if hasattr(module, config_name) and hasattr(module, main_name):
            return getattr(module, config_name), getattr(module, main_name)
    wanted = " or ".join(" and ".join(pair) for pair in ENTRY_POINTS)
    raise ConfigurationError(f"{module_name} cannot be swept: it has no {wanted}")


def _axes(config: Config, model_name: str) -> dict[str, Any]:
    is_tiny = model_name == TINY_MODEL
    axes: dict[str, Any] = {
        "learning_rate": config.learning_rates or list(TINY_LEARNING_RATES if is_tiny else LEARNING_RATES),
        "lora_rank": config.lora_ranks or list(TINY_LORA_RANKS if is_tiny else LORA_RANKS),
    }
    return axes | ({"batch_size": config.batch_sizes} if config.batch_sizes else {})


def _within_budget(main_fn: MainFn, config: Config, base_config: Any) -> MainFn:
    examples = config.training_budget_examples
    if examples is None:
        return main_fn
    if not hasattr(base_config, "batch_size"):
        raise ConfigurationError(
            f"training_budget_examples={examples} is counted in batches, and recipe={config.recipe} has no batch_size: "
            "limit its runs with base.max_steps="
        )
    if base_config.batch_size is None and not config.batch_sizes:
        raise ConfigurationError(
            f"training_budget_examples={examples} is counted in batches: give their size, with base.batch_size= or "
            "batch_sizes="
        )
    return functools.partial(run_within_budget, main_fn, examples)


def run_within_budget(main_fn: MainFn, examples: int, config: Any) -> Any:
    """At least one step, and no more than the config allows."""
    steps = max(1, examples // config.batch_size)
    allowed = steps if config.max_steps is None else min(steps, config.max_steps)
    return main_fn(chz.replace(config, max_steps=allowed))


def _help(argv: Sequence[str]) -> None:
    """Of the recipe too, whose arguments begin with base.; then that of the sweep, with which chz ends."""
    recipe = next((word.removeprefix("recipe=") for word in argv if word.startswith("recipe=")), "sft")
    config_class, _ = find_recipe(recipe)
    print(f"With base. before each, the arguments of recipe={recipe}:\n")
    print(chz.Blueprint(config_class).get_help())
    print("The arguments of the sweep:\n")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    sys.exit(run_command(lambda: main(sys.argv[1:])))
