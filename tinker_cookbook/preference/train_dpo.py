"""Learning from preferences: the loop. DPO, and by `loss` its relatives (`losses.LOSSES`).

For each batch of pairs, in order: save and evaluate if it is time to, ask the reference what it thinks of them (once
for each pair of the run), compute the loss from the policy's logprobs, and take an optimizer step. Everything else
around the loop is `training_run`.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import chz
import tinker
import torch

from tinker_cookbook.checkpoint_utils import CheckpointRecord
from tinker_cookbook.display import colorize_example
from tinker_cookbook.epochs import EpochConfig, EpochSchedule
from tinker_cookbook.eval.evaluators import Evaluator
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.preference.losses import Metrics, compute_dpo_loss, get_loss, loss_options
from tinker_cookbook.preference.objective import Objective, Scored, mismatched_datums
from tinker_cookbook.preference.pair_evaluator import PreferenceEvaluator, score
from tinker_cookbook.preference.reference import ReferenceLogprobs, open_reference
from tinker_cookbook.preference.server_losses import loss_config, losses_on_server, pair_datums
from tinker_cookbook.supervised.types import ChatDatasetBuilder, SupervisedDataset
from tinker_cookbook.tokenizer_utils import Tokenizer, get_tokenizer
from tinker_cookbook.training_run import TrainingRun, training_run
from tinker_cookbook.utils import trace
from tinker_cookbook.utils.concurrency import finish_despite_cancel

__all__ = ["Config", "compute_dpo_loss", "create_dpo_clients", "main", "print_example", "train"]

logger = logging.getLogger(__name__)


@chz.chz
class Config(EpochConfig):
    """A run of preference learning: the fields of every run, and these."""

    dataset_builder: ChatDatasetBuilder = chz.field(
        doc="Pairs: DPODatasetBuilderFromComparisons; for kto single examples: KTODatasetBuilder"
    )
    loss: str = chz.field(default="dpo", doc="dpo, ipo, simpo, orpo or kto")
    dpo_beta: float = chz.field(
        default=0.1, doc="What a nat is worth as reward; simpo takes 2 to 10, for orpo it weighs the odds"
    )
    label_smoothing: float = chz.field(
        default=0.0, doc="Share of the labels that are taken to be wrong; for dpo and simpo"
    )
    loss_options: dict[str, float] | None = chz.field(
        default=None, doc="Other options of the loss, such as gamma of simpo"
    )
    server_loss: bool = chz.field(
        default=True, doc="Let the server compute the loss in one request, if it offers that"
    )
    reference_model_name: str | None = chz.field(
        default=None,
        doc="Base model, or tinker:// path of weights, to stay near to; None: what the run starts from",
    )
    num_replicas: int = chz.field(
        default=8, doc="The reference is asked about eight times as many sequences at once"
    )
    learning_rate: float = chz.field(default=1e-5, doc="At its peak")

    def all_loss_options(self) -> dict[str, float]:
        """Those given, with the smoothing where there is some: losses that know none refuse it."""
        smoothing = {"label_smoothing": self.label_smoothing} if self.label_smoothing else {}
        return {**(self.loss_options or {}), **smoothing}

    @chz.validate
    def _check_training(self) -> None:
        loss_options(self.loss, self.dpo_beta, self.all_loss_options())
        if self.num_replicas < 1:
            raise ConfigurationError(f"num_replicas={self.num_replicas} must be at least 1")
        if self.reference_model_name is not None and not get_loss(self.loss).needs_reference:
            raise ConfigurationError(
                f"the loss {self.loss} has no reference: leave out reference_model_name={self.reference_model_name}"
            )


def main(config: Config) -> None:
    """Trains, or goes on with the run in `config.log_path`, until it is done."""
    asyncio.run(train(config))


async def train(config: Config) -> None:
    """`main` for callers inside an event loop."""
    objective = Objective(config.loss, config.dpo_beta, config.all_loss_options())
    async with training_run(config) as run:
        tokenizer = await asyncio.to_thread(get_tokenizer, config.model_name)
        dataset, test_dataset = await asyncio.to_thread(config.dataset_builder)
        schedule = EpochSchedule(config, len(dataset))
        reference = await _reference_logprobs(config, run) if objective.loss.needs_reference else None
        on_server = config.server_loss and config.loss in await losses_on_server(run.service_client)
        logger.info("the %s loss is computed %s", config.loss, "by the server" if on_server else "here")
        run.begin(
            schedule.total_steps,
            first_step=schedule.step_of(run.resume_state),
            evaluators=config.evaluators(_held_out(test_dataset, objective, reference)),
            headline=f"{objective.name}_loss",
        )
        epoch = -1
        for step in run.steps:
            if schedule.epoch_of(step) != epoch:
                epoch = schedule.epoch_of(step)
                await asyncio.to_thread(dataset.set_epoch, seed=epoch)
            await _step(run, step, dataset, schedule, objective, reference, tokenizer, on_server=on_server)


async def _step(
    run: TrainingRun,
    step: int,
    dataset: SupervisedDataset,
    schedule: EpochSchedule,
    objective: Objective,
    reference: ReferenceLogprobs | None,
    tokenizer: Tokenizer,
    *,
    on_server: bool,
) -> None:
    started = time.perf_counter()
    with trace.collect_into(trace.IterationWindow()) as window:
        metrics: dict[str, Any] = await run.before_step(step, schedule.state(step))
        async with trace.scope_span("get_batch"):
            data = objective.usable(await asyncio.to_thread(dataset.get_batch, schedule.batch_of(step)))
        if step == run.first_step:
            _print_first(data, objective, tokenizer)
        async with trace.scope_span("reference"):
            references = None if reference is None else await reference(data)
        async with trace.scope_span("forward_backward"):
            client = run.training_client
            if on_server and references is not None:
                fwd_bwd, figures_of = await _forward_backward_on_server(client, data, references, objective)
            else:
                fwd_bwd, figures_of = await _forward_backward(client, data, references, objective, reference)
    tokens = sum(datum.model_input.length for datum in data)

    async def finish() -> None:
        with trace.collect_into(window):
            async with trace.scope_span("step"):
                optim = await client.optim_step_async(schedule.adam(step))
                run.submitted(step, schedule.state(step + 1), tokens=tokens)
                figures = figures_of(await fwd_bwd.result_async())
                optim_metrics = (await optim.result_async()).metrics or {}
        window.total_time = time.perf_counter() - started
        count = {"num_pairs": len(data) // 2} if objective.loss.is_paired else {"num_examples": len(data)}
        row = {
            **metrics,
            "epoch": schedule.epoch_of(step),
            "progress": (step + 1) / schedule.total_steps,
            "learning_rate": schedule.learning_rate(step),
            "num_tokens": tokens,
            **count,
            **figures,
            **optim_metrics,
            **dataset.metrics(),
        }
        run.log_step(step, row, window=window, tokens=tokens)

    await finish_despite_cancel(
        finish()
    )  # a checkpoint from now on has this step: it must say so and find its row


Gradient = tuple[
    tinker.APIFuture[tinker.ForwardBackwardOutput], Callable[[tinker.ForwardBackwardOutput], Metrics]
]
"""On its way, and what gives the figures of the loss once it is there."""


async def _forward_backward(
    training_client: tinker.TrainingClient,
    data: list[tinker.Datum],
    references: Sequence[float] | None,
    objective: Objective,
    reference: ReferenceLogprobs | None,
) -> Gradient:
    """The loss is computed here, between two passes of the server: one for the logprobs, one for the gradient."""
    mismatched: Scored | None = None
    if not objective.loss.is_paired:  # needs no gradient, so that one pass is enough; new in every epoch
        mismatched = await score(training_client, mismatched_datums(data), reference, keep=False)
    figures: Metrics = {}

    def loss_fn(
        data_D: list[tinker.Datum], logprobs_D: list[torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, float]]:
        loss, found = objective(Scored(data_D, logprobs_D, references), mismatched)
        figures.update(found)
        return loss, found

    return await training_client.forward_backward_custom_async(data, loss_fn), lambda output: figures


async def _forward_backward_on_server(
    training_client: tinker.TrainingClient,
    data: list[tinker.Datum],
    references: Sequence[float],
    objective: Objective,
) -> Gradient:
    """One request, one pass. The figures are made of its logprobs, as in the other case."""
    config = loss_config(objective.name, objective.options, num_pairs=len(data) // 2)
    future = await training_client.forward_backward_async(pair_datums(data, references), "custom", config)

    def figures_of(output: tinker.ForwardBackwardOutput) -> Metrics:
        logprobs = [each["logprobs"].to_torch() for each in output.loss_fn_outputs]
        return objective(Scored(data, logprobs, references))[1]

    return future, figures_of


async def _reference_logprobs(config: Config, run: TrainingRun) -> ReferenceLogprobs:
    client, reference = await open_reference(
        config, run.service_client, run.training_client, is_resumed=run.resumed_from is not None
    )
    return await asyncio.to_thread(
        ReferenceLogprobs, client, reference.identity, config.log_path, config.num_replicas * 8
    )


def _held_out(
    test_dataset: SupervisedDataset | None, objective: Objective, reference: ReferenceLogprobs | None
) -> list[Evaluator]:
    if test_dataset is None:
        return []
    return [PreferenceEvaluator.from_dataset(test_dataset, objective, reference)]


def _print_first(data: list[tinker.Datum], objective: Objective, tokenizer: Tokenizer) -> None:
    labels = ("chosen", "rejected") if objective.loss.is_paired else ("first",)
    for datum, label in zip(data, labels, strict=False):
        print_example(datum, tokenizer, label)


def print_example(datum: tinker.Datum, tokenizer: Tokenizer, label: str = "") -> None:
    """To the log, each token in the colour of its own weight."""
    logger.info("%s example, coloured by what is learned:\n%s", label, colorize_example(datum, tokenizer))


# --- for loops of one's own -------------------------------------------------------------------------------


def create_dpo_clients(
    config: Config,
    service_client: tinker.ServiceClient,
    resume_info: CheckpointRecord | None = None,
    user_metadata: dict[str, str] | None = None,
) -> tuple[tinker.TrainingClient, tinker.SamplingClient]:
    """The policy, and the reference: what the run started from, also when it resumes."""
    if resume_info is not None and resume_info.state_path is not None:
        policy = service_client.create_training_client_from_state_with_optimizer(
            resume_info.state_path, user_metadata=user_metadata
        )
    elif config.load_checkpoint_path is not None:
        policy = service_client.create_training_client_from_state(
            config.load_checkpoint_path, user_metadata=user_metadata
        )
    else:
        policy = service_client.create_lora_training_client(
            config.model_name, rank=config.lora_rank, seed=config.seed, user_metadata=user_metadata
        )
    opening = open_reference(config, service_client, policy, is_resumed=resume_info is not None)
    client, _ = asyncio.run(opening)
    return policy, client


if __name__ == "__main__":  # every field by hand; `train_cli` is for people
    chz.nested_entrypoint(main)
