"""Reinforcement learning: the loop.

For each step: save and evaluate if it is time to, begin rollouts with the newest weights, and as groups of episodes
come in, turn their rewards into advantages and their tokens into data, and submit the gradient and the optimizer step.
How far sampling may run ahead (`async_config`) and whether training waits for whole batches (`stream_minibatch_config`)
are the depth and the unit of one queue, `RolloutPipeline`; everything else around the loop is `training_run`.

Suffixes: `_P` one per group, `_D` one per datum.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Any, TypeVar

import chz
import tinker
from tqdm import tqdm

from tinker_cookbook.rl.activity import Activity
from tinker_cookbook.rl.batch import Batch, KLPenalty, Minibatch, in_order, make_data
from tinker_cookbook.rl.config import AsyncConfig, Config, KLReferenceConfig, StreamMinibatchConfig
from tinker_cookbook.rl.data_processing import has_constant_reward
from tinker_cookbook.rl.group_source import GroupTask
from tinker_cookbook.rl.metric_util import compute_trajectory_metrics
from tinker_cookbook.rl.metrics import (
    compute_kl_sample_train,
    compute_logprob_gap,
    compute_post_kl,
    compute_sampling_client_metrics,
)
from tinker_cookbook.rl.pipeline import RolledOut, RolloutPipeline, describe
from tinker_cookbook.rl.report import print_group
from tinker_cookbook.rl.rollout_executor import end_executor
from tinker_cookbook.rl.rollouts import (
    FailedGroup,
    RolloutErrorCounter,
    RolloutRequest,
    run_group_rollout,
    set_rollout_executor,
)
from tinker_cookbook.rl.setup import Plan, context_window, kl_penalty, make_evaluators, make_plan
from tinker_cookbook.rl.step_files import REWARD, draw_curves, write_step_files
from tinker_cookbook.rl.types import EnvGroupBuilder, TrajectoryGroup
from tinker_cookbook.rl.update import Loss, Update, apply_importance_weights, submit_substeps, train_step
from tinker_cookbook.tokenizer_utils import Tokenizer, get_tokenizer
from tinker_cookbook.training_run import TrainingRun, training_run
from tinker_cookbook.utils import trace
from tinker_cookbook.utils.concurrency import finish_despite_cancel, gather_or_cancel
from tinker_cookbook.utils.lr_scheduling import compute_schedule_lr_multiplier
from tinker_cookbook.utils.seeds import derive_seed

__all__ = [
    "AsyncConfig",
    "Config",
    "KLReferenceConfig",
    "StreamMinibatchConfig",
    "gather_with_progress",
    "main",
    "prepare_minibatch",
    "print_group",
    "train_step",
]

logger = logging.getLogger(__name__)
T = TypeVar("T")
Metrics = dict[str, Any]


async def main(config: Config, rollout_executor: Executor | None = None) -> None:
    """With an executor, rollouts run in its processes or threads; it is shut down in the end."""
    set_rollout_executor(rollout_executor)
    try:
        async with training_run(config) as run:
            tokenizer = await asyncio.to_thread(get_tokenizer, config.model_name)
            dataset, test_dataset = await config.dataset_builder()
            plan = await make_plan(config, dataset, run.resume_state)
            window = await context_window(config, run.service_client)
            penalty = await kl_penalty(config, run.service_client)
            evaluators = make_evaluators(config, test_dataset, window)
            run.begin(plan.total_steps, evaluators=evaluators, headline=REWARD)
            await Trainer(config, run, plan, window, penalty, tokenizer).train()
        draw_curves(config, run)
    finally:
        set_rollout_executor(None)
        if rollout_executor is not None:
            await end_executor(rollout_executor)


class Trainer:
    """The steps of one run."""

    def __init__(
        self,
        config: Config,
        run: TrainingRun,
        plan: Plan,
        window: int | None,
        penalty: KLPenalty | None,
        tokenizer: Tokenizer,
    ):
        self._config = config
        self._run = run
        self._plan = plan
        self._source = plan.source
        self._groups_per_step = plan.groups_per_step
        self._window = window
        self._penalty = penalty
        self._tokenizer = tokenizer
        self._strategy = config.effective_rollout_strategy()
        self._errors = RolloutErrorCounter()
        self._activity = Activity()
        self._sampler: tinker.SamplingClient | None = None
        ahead = config.max_staleness + 1
        self._pipeline = RolloutPipeline(
            plan.source,
            self._roll_out,
            capacity=None if plan.groups_per_step is None else plan.groups_per_step * ahead,
            max_staleness=config.max_staleness,
            activity=self._activity,
        )

    async def train(self) -> None:
        async with self._pipeline:
            for step in self._steps():
                if self._data_ended or not await self._step(step):
                    logger.info("the data ended after %d of %d planned steps", step, self._run.total_steps)
                    break

    def _steps(self) -> Iterator[int]:
        """Those of the plan, which may turn out longer as the data is read."""
        step = self._run.first_step
        while step < self._plan.total_seen_from(step):
            self._run.expect(self._plan.total_seen_from(step))
            yield step
            step += 1

    async def _step(self, step: int) -> bool:
        """False if the data ended and nothing could be learned from the rest of it: this step was none then."""
        with trace.trace_iteration(step) as window:
            sampler = await self._newest_sampler()
            metrics = await self._run.before_step(step, self._state(step), sampling_client=sampler)
            if self._groups_per_step is None:
                self._source.open_until(step + 1)
            await self._pipeline.sample_from(sampler, step, groups_wanted=self._plan.groups_wanted(step))
            update = Update(self._run.training_client, self._loss, self._adam(step))
            batch = await self._submit(update)
            self._pipeline.trained()
            done = step if self._data_ended and not update.data_D else step + 1
            self._run.submitted(done - 1, self._state(done), tokens=batch.trained_tokens)
            await finish_despite_cancel(self._finish(step, batch, update, metrics, window))
        return done > step

    @property
    def _data_ended(self) -> bool:
        """Where the size of a step is fixed; a batch of the data set is a step, whatever comes of it."""
        return self._groups_per_step is not None and self._source.exhausted

    # --- rollouts ----------------------------------------------------------------------------------------

    async def _newest_sampler(self) -> tinker.SamplingClient:
        """Of the weights of this moment; kept for as long as they are."""
        if self._sampler is None:
            client = self._run.training_client
            self._sampler = await client.save_weights_and_get_sampling_client_async()
        return self._sampler

    async def _roll_out(
        self, group: GroupTask, sampler: tinker.SamplingClient
    ) -> TrajectoryGroup | FailedGroup:
        config = self._config
        request = RolloutRequest(
            sampling_client=sampler,
            env_group_builder=group.builder,
            max_tokens=config.max_tokens,
            temperature=config.temperature,
            seed=derive_seed(config.seed, group.id.batch, group.id.index, group.id.attempt),
            context_window=self._window,
            strategy=self._strategy,
            termination=config.effective_termination(),
            enable_logging=group.id.index < config.num_groups_to_log,
            timeout_seconds=config.group_timeout_seconds,
            name=describe(group.id),
        )
        return await run_group_rollout(request)

    async def _collect(self, batch: Batch, count: int | None) -> list[RolledOut]:
        """The next groups to train on, in the order of the data. None: all there are.

        With dynamic sampling, groups that nothing can be learned from do not count and are replaced by others.
        """
        ahead = self._config.async_config
        replaces = ahead is not None and ahead.dynamic_sampling
        kept: list[RolledOut] = []
        taken = 0
        while count is None or taken < count:
            rolled = await self._pipeline.next_group()
            if rolled is None:
                break
            batch.rolled_P.append(rolled)
            self._errors.ingest(rolled.result)
            if useful := self._is_useful(rolled):
                kept.append(rolled)
            elif replaces:
                self._pipeline.drop(rolled)
            taken += useful or not replaces
        return in_order(kept)

    def _is_useful(self, rolled: RolledOut) -> bool:
        if isinstance(rolled.result, FailedGroup):
            logger.warning("%s failed: %s", describe(rolled.id), rolled.result.errors[-1:])
            return False
        return not (self._config.remove_constant_reward_groups and has_constant_reward(rolled.result))

    # --- training ----------------------------------------------------------------------------------------

    async def _submit(self, update: Update) -> Batch:
        """All of a step, as its groups come in; no answer is waited for."""
        config, batch = self._config, Batch()
        streaming = config.stream_minibatch_config is not None
        for index, size in enumerate(self._minibatch_sizes()):
            async with trace.scope_span("sampling"):
                rolled_P = await self._collect(batch, size)
            async with trace.scope_span("prepare_minibatch"):
                data_D = await self._add_minibatch(batch, rolled_P)
            if data_D and not update.data_D:
                self._activity.begin("training")
            if not streaming:
                self._run.torn = bool(data_D)  # until the step is noted as submitted
                await submit_substeps(update, data_D, config.num_substeps)
                continue
            await update.add(data_D)
            if (index + 1) % config.num_minibatches == 0:
                self._run.torn = bool(update.data_D)
                await update.step()
        return batch

    def _minibatch_sizes(self) -> list[int | None]:
        """Groups of each part of a step. The last takes all there are, where a step is a batch of the data set."""
        config, stream = self._config, self._config.stream_minibatch_config
        if stream is None:
            return [self._groups_per_step]
        parts = config.num_substeps * stream.num_minibatches
        sizes: list[int | None] = [stream.groups_per_batch // parts] * parts
        return sizes if self._groups_per_step is not None else [*sizes[:-1], None]

    async def _add_minibatch(self, batch: Batch, rolled_P: list[RolledOut]) -> list[tinker.Datum]:
        """The data to send; what it was made of is noted in the batch."""
        config = self._config
        data_D, metadata_D, metrics = await make_data(
            [rolled.group for rolled in rolled_P], config.advantage, self._penalty, config.entropy_coef
        )
        minibatch = Minibatch(rolled_P, data_D, metadata_D, metrics)
        batch.minibatches.append(minibatch)
        if config.max_importance_weight > 0 and data_D:
            data_D, metrics = await apply_importance_weights(
                data_D, self._run.training_client, config.max_importance_weight
            )
            minibatch.metrics.update(metrics)
        return data_D

    async def _finish(
        self, step: int, batch: Batch, update: Update, metrics: Metrics, window: trace.IterationWindow
    ) -> None:
        """While the server trains, everything that is to be said about the episodes; then its answers."""
        metrics |= self._metrics_of(step, batch)
        write_step_files(self._config, self._run, step, batch, self._tokenizer)
        if batch.whole_groups and step == self._run.first_step:
            print_group(batch.whole_groups[0].group, self._tokenizer)
        if update.data_D:
            metrics |= await self._answers(batch, update)
            self._activity.end("training")
        else:
            logger.warning("step %d: no group to learn from, and no update", step)
        metrics |= batch.metrics | {"optim/optimizer_steps": update.optimizer_steps}
        metrics |= self._activity.fractions() | _speed(batch, window.elapsed)
        window.total_time = window.elapsed
        self._run.log_step(step, metrics, window=window, tokens=batch.trained_tokens)

    async def _answers(self, batch: Batch, update: Update) -> Metrics:
        logprobs_D, metrics = await update.results()
        data_D, first = batch.all_data, update.before_first_step
        metrics |= compute_kl_sample_train(data_D, logprobs_D)
        metrics |= compute_logprob_gap(data_D[:first], logprobs_D[:first])
        self._sampler = None
        if self._config.compute_post_kl:
            metrics |= await compute_post_kl(data_D, await self._newest_sampler())
        return metrics

    @property
    def _loss(self) -> Loss:
        return Loss(self._config.loss_fn, self._config.loss_fn_config)

    def _learning_rate(self, step: int) -> float:
        config = self._config
        factor = compute_schedule_lr_multiplier(
            config.lr_schedule, step, self._run.total_steps, config.warmup_steps
        )
        return config.learning_rate * factor

    def _adam(self, step: int) -> tinker.AdamParams:
        config = self._config
        return tinker.AdamParams(
            learning_rate=self._learning_rate(step),
            beta1=config.adam_beta1,
            beta2=config.adam_beta2,
            eps=config.adam_eps,
            weight_decay=config.weight_decay,
            grad_clip_norm=config.grad_clip_norm,
        )

    def _state(self, step: int) -> dict[str, Any]:
        """Where this step stands: by itself where a step is a batch, with the groups under way otherwise."""
        state = {"batch": step}
        return state if self._groups_per_step is None else state | self._source.state()

    def _metrics_of(self, step: int, batch: Batch) -> Metrics:
        """Of all groups of the step, trained on or not."""
        whole_P = batch.whole_groups
        return {
            "progress/batch": step,
            "progress/done_frac": (step + 1) / self._run.total_steps,
            "optim/lr": self._learning_rate(step),
            **compute_trajectory_metrics(
                [rolled.group for rolled in whole_P], [rolled.builder.logging_tags() for rolled in whole_P]
            ),
            **compute_sampling_client_metrics(list(batch.rolled_P)),
            **self._take_errors(),
            "rollouts/groups": len(batch.rolled_P),
            "rollouts/groups_trained_on": sum(len(each.rolled_P) for each in batch.minibatches),
            "rollouts/stale_groups": self._pipeline.take_stale_groups(),
        }

    def _take_errors(self) -> Metrics:
        """Those since the last row, so that a resumed run's rows are those of an undisturbed one."""
        counted, self._errors = self._errors, RolloutErrorCounter()
        return counted.get_metrics()


def _speed(batch: Batch, seconds: float) -> Metrics:
    return {
        "speed/sampled_tokens_per_s": batch.sampled_tokens / seconds,
        "speed/trained_tokens_per_s": batch.trained_tokens / seconds,
    }


# --- for loops of one's own -------------------------------------------------------------------------------------


async def prepare_minibatch(
    env_group_builders_P: Sequence[EnvGroupBuilder],
    trajectory_groups_P: list[TrajectoryGroup],
    tokenizer: Tokenizer,
    kl_reference_client: tinker.SamplingClient | None,
    kl_penalty_coef: float,
    kl_discount_factor: float,
) -> tuple[list[tinker.Datum], Metrics]:
    """Data and figures of some groups, of which two are printed."""
    taglist_P = [builder.logging_tags() for builder in env_group_builders_P]
    metrics = compute_trajectory_metrics(trajectory_groups_P, taglist_P)
    for group in trajectory_groups_P[:2]:
        print_group(group, tokenizer)
    penalty = None
    if kl_reference_client is not None and kl_penalty_coef > 0:
        penalty = KLPenalty(kl_reference_client, kl_penalty_coef, kl_discount_factor)
    data_D, _, kl_metrics = await make_data(trajectory_groups_P, "group_mean", penalty)
    return data_D, metrics | kl_metrics


async def gather_with_progress(coroutines: Iterable[Coroutine[Any, Any, T]], desc: str) -> list[T]:
    """All results, in order, with a bar for the person who waits."""
    waiting = list(coroutines)
    with tqdm(total=len(waiting), desc=desc) as bar:

        async def counted(coroutine: Coroutine[Any, Any, T]) -> T:
            try:
                return await coroutine
            finally:
                bar.update()

        return await gather_or_cancel(counted(coroutine) for coroutine in waiting)


def run_from_command_line(config: Config) -> None:
    asyncio.run(main(config))


if __name__ == "__main__":  # every field by hand; `train_cli` is for people
    chz.nested_entrypoint(run_from_command_line)
