"""Reinforcement learning on tasks of reasoning-gym (pip install reasoning-gym).

python -m tinker_cookbook.recipes.reasoning_gym.train                        # chain_sum, the tiny model
python -m tinker_cookbook.recipes.reasoning_gym.train task=syllogism model_name=HuggingFaceTB/SmolLM2-135M-Instruct
python -m tinker_cookbook.recipes.reasoning_gym.train task=chain_sum:2,products 'config={"products": {"max_digits": 1}}'
"""

import json
import sys
from typing import Any

import chz

from tinker_cookbook.command_line import run_command
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes.launch import TINY_MODEL
from tinker_cookbook.recipes.reasoning_gym.env import ReasoningGymDatasetBuilder
from tinker_cookbook.recipes.reasoning_gym.extraction import Extraction
from tinker_cookbook.recipes.rl_launch import RLCLIConfig, renderer_for, rl_config, run_training
from tinker_cookbook.rl import train

TINY_TASK = "chain_sum"
TINY_OPTIONS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}
"""What the tiny model can learn: sums and differences of two numbers."""


@chz.chz
class CLIConfig(RLCLIConfig):
    task: str = chz.field(default=TINY_TASK, doc="A task, or several by weight: chain_sum:2,products:1")
    config: str | None = chz.field(
        default=None,
        doc="JSON of the task's options; of several, by task. None: easy sums for the tiny model",
    )
    extraction: Extraction = chz.field(
        default="last_line", doc="Where the answer is: last_line, last_number, tag, boxed or whole"
    )
    n_batches: int = chz.field(default=50, doc="Batches to train on")
    test_size: int = chz.field(default=100, doc="Problems of each task that are held out")
    score_timeout: float = chz.field(default=5.0, doc="Seconds in which an answer must be scored")
    format_coef: float = chz.field(default=0.0, doc="What a reply without an answer, or cut off, loses")


def build_config(cli: CLIConfig) -> train.Config:
    renderer_name = renderer_for(cli, short_replies=cli.max_tokens is None)
    return rl_config(
        cli,
        recipe="reasoning_gym",
        data_name=cli.task.replace(":", "").replace(",", "-"),
        renderer_name=renderer_name,
        max_tokens=cli.max_tokens or 20,
        dataset_builder=ReasoningGymDatasetBuilder(
            task=cli.task,
            config=_options(cli),
            model_name_for_tokenizer=cli.model_name,
            renderer_name=renderer_name,
            batch_size=cli.groups_per_batch,
            group_size=cli.group_size,
            n_batches=cli.n_batches,
            test_size=cli.test_size,
            seed=cli.seed,
            extraction=cli.extraction,
            timeout=cli.score_timeout,
            format_coef=cli.format_coef,
        ),
    )


def _options(cli: CLIConfig) -> dict[str, Any]:
    if cli.config is None:
        return dict(TINY_OPTIONS) if (cli.model_name, cli.task) == (TINY_MODEL, TINY_TASK) else {}
    try:
        options = json.loads(cli.config)
    except ValueError as error:
        raise ConfigurationError(f"config={cli.config!r} is no JSON: {error}") from error
    if not isinstance(options, dict):
        raise ConfigurationError(
            f"config={cli.config!r} must be a JSON object, such as {json.dumps(TINY_OPTIONS)}"
        )
    return options


def cli_main(cli_config: CLIConfig) -> None:
    run_training(cli_config, build_config(cli_config))


if __name__ == "__main__":
    sys.exit(run_command(lambda: cli_main(chz.entrypoint(CLIConfig))))
