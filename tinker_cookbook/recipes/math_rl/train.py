"""Reinforcement learning on mathematics.

python -m tinker_cookbook.recipes.math_rl.train                  # sums, the tiny model, minutes, nothing to download
python -m tinker_cookbook.recipes.math_rl.train env=gsm8k model_name=Qwen/Qwen3-8B groups_per_batch=64 group_size=8
python -m tinker_cookbook.recipes.math_rl.train env=problems train_data=mine.jsonl test_size=100 model_name=...
"""

import sys

import chz

from tinker_cookbook.command_line import run_command
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes.launch import TINY_MODEL
from tinker_cookbook.recipes.math_rl.arithmetic_env import ArithmeticDatasetBuilder
from tinker_cookbook.recipes.math_rl.math_env import DATASET_BUILDER_MAP
from tinker_cookbook.recipes.math_rl.math_grading import Grader
from tinker_cookbook.recipes.rl_launch import RLCLIConfig, renderer_for, rl_config, run_training
from tinker_cookbook.rl import train
from tinker_cookbook.rl.types import RLDatasetBuilder
from tinker_cookbook.tasks.arithmetic import THINK

ARITHMETIC = "arithmetic"
MAX_TOKENS = {ARITHMETIC: 16, "gsm8k": 1024}
MAX_TOKENS_THINKING = 64  # of a sum
MAX_TOKENS_ELSE = 2048


@chz.chz
class CLIConfig(RLCLIConfig):
    env: str = chz.field(
        default=ARITHMETIC, doc=f"{ARITHMETIC}, {', '.join(DATASET_BUILDER_MAP)} (those of train_data)"
    )
    train_data: str | None = chz.field(
        default=None, doc="File, folder or name on the hub to train on, instead of the data set of that name"
    )
    test_data: str | None = chz.field(default=None, doc="Likewise to test on")
    test_size: int | None = chz.field(
        default=None, doc="Problems to test on; None: 100 sums, or all of a data set"
    )
    grader: Grader = chz.field(default="sympy", doc="sympy or math_verify")
    grader_timeout: float = chz.field(default=1.0, doc="Seconds in which an answer must be graded")
    fewshot: bool | None = chz.field(
        default=None, doc="Show a worked example before each problem; None: unless these are sums"
    )
    n_batches: int = chz.field(default=44, doc="Batches of sums")
    largest: int | None = chz.field(
        default=None, doc="Sums are of numbers from 0 to this; None: 30 for the tiny model, else 100"
    )
    think: bool | None = chz.field(
        default=None,
        doc="Say `Think first.` before a sum; None: to the tiny model, which was taught what it means",
    )


def asks_to_think(cli: CLIConfig) -> bool:
    return cli.model_name == TINY_MODEL if cli.think is None else cli.think


def build_config(cli: CLIConfig) -> train.Config:
    is_sums = cli.env == ARITHMETIC
    renderer_name = renderer_for(cli, short_replies=is_sums)
    return rl_config(
        cli,
        recipe="math_rl",
        data_name=cli.env,
        dataset_builder=_sums(cli, renderer_name) if is_sums else _problems(cli, renderer_name),
        renderer_name=renderer_name,
        max_tokens=cli.max_tokens or _max_tokens(cli),
    )


def _max_tokens(cli: CLIConfig) -> int:
    if cli.env == ARITHMETIC and asks_to_think(cli):
        return MAX_TOKENS_THINKING
    return MAX_TOKENS.get(cli.env, MAX_TOKENS_ELSE)


def _sums(cli: CLIConfig, renderer_name: str) -> RLDatasetBuilder:
    if cli.train_data is not None or cli.test_data is not None:
        raise ConfigurationError(
            "sums are made up as they are needed; for a file of problems type env=problems"
        )
    return ArithmeticDatasetBuilder(
        batch_size=cli.groups_per_batch,
        group_size=cli.group_size,
        n_batches=cli.n_batches,
        model_name_for_tokenizer=cli.model_name,
        renderer_name=renderer_name,
        include_fewshot=bool(cli.fewshot),
        system_prompt=THINK if asks_to_think(cli) else None,
        largest=cli.largest or (30 if cli.model_name == TINY_MODEL else 100),
        test_size=100 if cli.test_size is None else cli.test_size,
        seed=cli.seed,
    )


def _problems(cli: CLIConfig, renderer_name: str) -> RLDatasetBuilder:
    if cli.env not in DATASET_BUILDER_MAP:
        raise ConfigurationError(
            f"there is no env {cli.env!r}; there are {ARITHMETIC}, {', '.join(DATASET_BUILDER_MAP)}"
        )
    return DATASET_BUILDER_MAP[cli.env](
        batch_size=cli.groups_per_batch,
        group_size=cli.group_size,
        model_name_for_tokenizer=cli.model_name,
        renderer_name=renderer_name,
        convo_prefix=None if cli.fewshot is False else "standard",
        seed=cli.seed,
        train_data=cli.train_data,
        test_data=cli.test_data,
        test_size=cli.test_size,
        grader=cli.grader,
        timeout=cli.grader_timeout,
    )


def cli_main(cli_config: CLIConfig) -> None:
    run_training(cli_config, build_config(cli_config))


if __name__ == "__main__":
    sys.exit(run_command(lambda: cli_main(chz.entrypoint(CLIConfig))))
