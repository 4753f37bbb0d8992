"""Supervised fine-tuning: the loop.

For each batch, in order: save and evaluate if it is time to, submit forward_backward and optim_step, and go on to the
next batch while the server works on this one (`submit_ahead`). A checkpoint is asked for before its batch is submitted,
so it holds exactly the batches before; everything else around the loop is `training_run`.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import chz
import tinker

from tinker_cookbook.display import colorize_example
from tinker_cookbook.epochs import EpochConfig, EpochSchedule
from tinker_cookbook.eval.evaluators import Evaluator
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.supervised.common import compute_bpb, compute_mean_nll
from tinker_cookbook.supervised.nll_evaluator import NLLEvaluator
from tinker_cookbook.supervised.types import SupervisedDataset, SupervisedDatasetBuilder
from tinker_cookbook.tokenizer_utils import Tokenizer, get_tokenizer
from tinker_cookbook.training_run import TrainingRun, evaluate_all, training_run
from tinker_cookbook.utils import trace

logger = logging.getLogger(__name__)


@chz.chz
class Config(EpochConfig):
    """A run of supervised fine-tuning: the fields of every run, and these."""

    dataset_builder: SupervisedDatasetBuilder = chz.field(doc="What is trained on")
    submit_ahead: int = chz.field(default=1, doc="Batches submitted while the server works on one")

    @chz.validate
    def _check_training(self) -> None:
        if self.submit_ahead < 0:
            raise ConfigurationError(f"submit_ahead={self.submit_ahead} is negative; 0 waits for every batch")


@dataclass
class SubmittedBatch:
    """A batch the server has, and what is known of it before it answers."""

    fwd_bwd_future: tinker.APIFuture[tinker.ForwardBackwardOutput]
    optim_step_future: tinker.APIFuture[tinker.OptimStepResponse]
    metrics: dict[str, Any]
    data: list[tinker.Datum]
    step: int
    epoch_idx: int
    batch_idx: int
    num_tokens: int = 0
    window: trace.IterationWindow = field(default_factory=trace.IterationWindow)
    started: float = 0.0


async def main(config: Config) -> None:
    """Trains, or goes on with the run in `config.log_path`, until it is done."""
    async with training_run(config) as run:
        tokenizer = await asyncio.to_thread(get_tokenizer, config.model_name)
        dataset, test_dataset = await asyncio.to_thread(config.dataset_builder)
        schedule = EpochSchedule(config, len(dataset))
        run.begin(
            schedule.total_steps,
            first_step=schedule.step_of(run.resume_state),
            evaluators=config.evaluators(_held_out(test_dataset, tokenizer)),
            headline="train_mean_nll",
        )
        await _train(config, run, dataset, schedule, tokenizer)


async def _train(
    config: Config,
    run: TrainingRun,
    dataset: SupervisedDataset,
    schedule: EpochSchedule,
    tokenizer: Tokenizer,
) -> None:
    pending: deque[SubmittedBatch] = deque()

    async def settle(ahead: int = 0) -> None:
        while len(pending) > ahead:
            await _finish(run, pending.popleft(), schedule, tokenizer)

    epoch = -1
    try:
        for step in run.steps:
            if schedule.epoch_of(step) != epoch:
                epoch = schedule.epoch_of(step)
                await asyncio.to_thread(dataset.set_epoch, seed=epoch)
            pending.append(await _submit(run, dataset, schedule, step, settle))
            if step == run.first_step:
                first = colorize_example(pending[-1].data[0], tokenizer)
                logger.info("the first example, coloured by what is learned:\n%s", first)
            await settle(config.submit_ahead)
        await settle()
    except asyncio.CancelledError:  # a checkpoint follows, and a resumed run does not make these rows again
        await settle()
        raise


async def _submit(
    run: TrainingRun,
    dataset: SupervisedDataset,
    schedule: EpochSchedule,
    step: int,
    settle: Callable[[], Awaitable[None]],
) -> SubmittedBatch:
    started = time.perf_counter()
    with trace.collect_into(trace.IterationWindow()) as window:
        metrics = await run.before_step(step, schedule.state(step), settle=settle)
        async with trace.scope_span("get_batch"):
            data = await asyncio.to_thread(dataset.get_batch, schedule.batch_of(step))
        learning_rate = schedule.learning_rate(step)
        async with trace.scope_span("submit_batch"):
            fwd_bwd = await run.training_client.forward_backward_async(data, "cross_entropy")
            optim = await run.training_client.optim_step_async(schedule.adam(step))
    tokens = sum(datum.model_input.length for datum in data)
    run.submitted(step, schedule.state(step + 1), tokens=tokens)
    metrics |= {"epoch": schedule.epoch_of(step), "learning_rate": learning_rate, **dataset.metrics()}
    epoch, batch = schedule.epoch_of(step), schedule.batch_of(step)
    return SubmittedBatch(fwd_bwd, optim, metrics, data, step, epoch, batch, tokens, window, started)


async def _finish(
    run: TrainingRun, batch: SubmittedBatch, schedule: EpochSchedule, tokenizer: Tokenizer
) -> None:
    with trace.collect_into(batch.window):
        async with trace.scope_span("step"):
            result = await batch.fwd_bwd_future.result_async()
            optim = await batch.optim_step_future.result_async()
    batch.window.total_time = time.perf_counter() - batch.started
    logprobs = [output["logprobs"] for output in result.loss_fn_outputs]
    weights = [datum.loss_fn_inputs["weights"] for datum in batch.data]
    targets = [datum.loss_fn_inputs["target_tokens"] for datum in batch.data]
    metrics = batch.metrics | {
        "progress": (batch.step + 1) / schedule.total_steps,
        "num_sequences": len(batch.data),
        "num_tokens": batch.num_tokens,
        "num_loss_tokens": sum(int((tensor.to_torch() > 0).sum()) for tensor in weights),
        "train_mean_nll": compute_mean_nll(logprobs, weights),
        "train_mean_bpb": compute_bpb(logprobs, weights, targets, tokenizer),
        **(optim.metrics or {}),
    }
    run.log_step(batch.step, metrics, window=batch.window, tokens=batch.num_tokens)


def _held_out(test_dataset: SupervisedDataset | None, tokenizer: Tokenizer) -> list[Evaluator]:
    return [] if test_dataset is None else [NLLEvaluator.from_dataset(test_dataset, tokenizer=tokenizer)]


async def run_evals(
    evaluators: Sequence[Evaluator], training_client: tinker.TrainingClient, step: int
) -> dict[str, float]:
    """All evaluators on the weights of this moment, outside of a run of ours."""
    return await evaluate_all(evaluators, training_client, step)


def run_from_command_line(config: Config) -> None:
    asyncio.run(main(config))


if __name__ == "__main__":  # every field by hand; `train_cli` is for people
    chz.nested_entrypoint(run_from_command_line)
