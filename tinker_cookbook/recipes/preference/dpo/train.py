"""Direct preference optimization on pairs of answers.

python -m tinker_cookbook.recipes.preference.dpo.train   # the tiny model learns manners
python -m tinker_cookbook.recipes.preference.dpo.train model_name=Qwen/Qwen3.5-9B-Base dataset=hhh
python -m tinker_cookbook.recipes.preference.dpo.train model_name=... dataset=my_pairs.jsonl test_size=100
"""

import sys
from pathlib import Path

import chz

from tinker_cookbook.cli_utils import check_log_dir
from tinker_cookbook.command_line import run_command
from tinker_cookbook.command_settings import CommandSettings, handed_on, renderer_for
from tinker_cookbook.eval.evaluators import EvaluatorBuilder
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.preference import train_dpo
from tinker_cookbook.preference.dpo_datasets import DPODatasetBuilderFromComparisons
from tinker_cookbook.recipes.launch import TINY_MODEL, example_path
from tinker_cookbook.recipes.preference.manners import MannersEvaluatorBuilder
from tinker_cookbook.recipes.preference.report import change
from tinker_cookbook.recipes.preference.sources import TINY, comparison_builder
from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig

# The rule of the small data has no exceptions, and would be followed until answers fall apart. Where one label in ten
# is taken to be wrong, the best margin is log(0.9 / 0.1) / beta = 8.8 nats: enough for the style, and there it ends.
TINY_BETA, TINY_SMOOTHING = 0.25, 0.1


@chz.chz
class CLIConfig(CommandSettings):
    model_name: str = chz.field(default=TINY_MODEL, doc="Base model, as the server names it")
    dataset: str = chz.field(
        default=TINY, doc="tiny, hhh, helpsteer3, ultrafeedback and others of the hub, or a file of pairs"
    )
    test_size: int = chz.field(default=0, doc="Pairs of a file that are held out")
    reference_model_name: str | None = chz.field(
        default=None,
        doc="Model, or tinker:// path of weights, to stay near to; None: what the run starts from",
    )
    max_length: int | None = chz.field(default=8192, doc="Tokens; a pair with a longer side is left out")
    batch_size: int | None = chz.field(
        default=None, doc="Pairs of a batch; None: 32 for dataset=tiny, else 256"
    )

    loss: str = chz.field(default="dpo", doc="dpo, ipo, simpo or orpo")
    dpo_beta: float | None = chz.field(
        default=None, doc="What a nat is worth as reward; None: 0.25 for dataset=tiny, else 0.1"
    )
    label_smoothing: float | None = chz.field(
        default=None,
        doc="Share of the labels that are taken to be wrong; None: 0.1 for dpo on dataset=tiny, else 0",
    )
    learning_rate: float | None = chz.field(
        default=None, doc="At its peak; None: 5e-4 for the tiny model, else 1e-5"
    )
    num_epochs: int = chz.field(default=1, doc="Times the data is gone through")

    @chz.validate
    def _check_loss(self) -> None:
        if self.loss == "kto":
            raise ConfigurationError(
                "this recipe learns from pairs, and kto from single answers; for a file of yours type: "
                f"python -m tinker_cookbook.preference.train_cli loss=kto pairs=... model_name={self.model_name}"
            )


def build_config(cli: CLIConfig) -> train_dpo.Config:
    renderer_name = renderer_for(cli, cli.model_name)
    batch_size = cli.batch_size or (32 if cli.dataset == TINY else 256)
    usual_rate = 5e-4 if cli.model_name == TINY_MODEL else 1e-5
    learning_rate = usual_rate if cli.learning_rate is None else cli.learning_rate
    is_tiny = cli.dataset == TINY
    beta = cli.dpo_beta or (TINY_BETA if is_tiny else 0.1)
    smoothing = TINY_SMOOTHING if is_tiny and cli.loss == "dpo" else 0.0
    return train_dpo.Config(
        log_path=cli.log_path or _usual_folder(cli, learning_rate, beta, batch_size),
        model_name=cli.model_name,
        recipe_name="dpo",
        renderer_name=renderer_name,
        dataset_builder=DPODatasetBuilderFromComparisons(
            comparison_builder=comparison_builder(
                cli.dataset, test_size=cli.test_size, seed=cli.seed, best_wins=True
            ),
            common_config=ChatDatasetBuilderCommonConfig(
                model_name_for_tokenizer=cli.model_name,
                renderer_name=renderer_name,
                max_length=cli.max_length,
                batch_size=batch_size,
            ),
        ),
        evaluator_builders=_evaluators(cli, renderer_name),
        dpo_beta=beta,
        label_smoothing=smoothing if cli.label_smoothing is None else cli.label_smoothing,
        learning_rate=learning_rate,
        **handed_on(cli, "loss", "num_epochs", "reference_model_name"),
    )


def _usual_folder(cli: CLIConfig, learning_rate: float, beta: float, batch_size: int) -> str:
    return example_path(
        "dpo",
        cli.loss,
        Path(cli.dataset).stem,
        cli.model_name,
        f"{cli.lora_rank}rank",
        f"{learning_rate:g}lr",
        f"{beta:g}beta",
        f"{batch_size}batch",
        f"seed{cli.seed}",
    )


def _evaluators(cli: CLIConfig, renderer_name: str) -> list[EvaluatorBuilder]:
    """The rule of the small data is known, so that answers can be checked against it."""
    if cli.dataset != TINY:
        return []
    return [MannersEvaluatorBuilder(model_name=cli.model_name, renderer_name=renderer_name, seed=cli.seed)]


def cli_main(cli_config: CLIConfig) -> None:
    config = build_config(cli_config)
    check_log_dir(config.log_path, cli_config.behavior_if_log_dir_exists)
    train_dpo.main(config)
    metrics = ["test/accuracy", *(["style/preferred", "style/true"] if cli_config.dataset == TINY else [])]
    for metric in metrics:
        print(change(config.log_path, metric))


if __name__ == "__main__":
    sys.exit(run_command(lambda: cli_main(chz.entrypoint(CLIConfig))))
