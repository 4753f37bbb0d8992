"""What every trainer does around its steps, written once.

    async with training_run(config) as run:
        run.begin(total_steps, evaluators=[(config.eval_every, evaluators)], headline="train_mean_nll")
        for step in run.steps:
            with trace.trace_iteration(step) as window:
                metrics = await run.before_step(step, where(step))   # checkpoint and evaluations that are due
                ...submit the training of this step...
                run.submitted(step, where(step + 1))
                ...wait for it...
            run.log_step(step, metrics, window=window)

Opening connects, finds the newest checkpoint that the server still has, and makes the training client from it.
Leaving evaluates the final weights and saves them. Ctrl-C saves what was submitted, so that the same command goes on
from there.
"""

import asyncio
import logging
import shlex
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import tinker

from tinker_cookbook import model_info, service
from tinker_cookbook.checkpoint_utils import (
    CheckpointManager,
    CheckpointRecord,
    add_renderer_name_to_user_metadata,
    check_renderer_name_for_checkpoint_async,
    find_resume_checkpoint,
    rest_client,
    save_checkpoint_async,
)
from tinker_cookbook.eval.evaluators import (
    Evaluator,
    RecordingEvaluator,
    SamplingClientEvaluator,
    TrainingClientEvaluator,
)
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.run_config import RunConfig
from tinker_cookbook.stores import TrainingRunStore
from tinker_cookbook.utils import logtree, ml_log, trace
from tinker_cookbook.utils.atomic_file import write_text_atomically
from tinker_cookbook.utils.concurrency import gather_or_cancel
from tinker_cookbook.utils.git_rev import recipe_user_metadata
from tinker_cookbook.utils.interrupts import wakes_on_signals
from tinker_cookbook.utils.misc_utils import iteration_dir, local_folder
from tinker_cookbook.utils.progress import Progress

logger = logging.getLogger(__name__)

Metrics = dict[str, Any]
LoopState = dict[str, Any]
"""Where a loop stands: at least `batch`, the next batch to run. Written into every checkpoint's record."""


@asynccontextmanager
async def training_run(
    config: RunConfig, *, user_metadata: dict[str, str] | None = None
) -> AsyncIterator["TrainingRun"]:
    """Open a run, or go on with the one in `config.log_path`; finish it on leaving."""
    run_logger = ml_log.setup_logging(config.log_path, config.wandb_project, config.wandb_name, config=config)
    folder = local_folder(config.log_path)
    if config.enable_trace and folder is not None:
        trace.trace_init(output_file=str(folder / "trace_events.jsonl"))
    run: TrainingRun | None = None
    with wakes_on_signals():
        try:
            run = await TrainingRun.open(config, run_logger, user_metadata or {})
            yield run
            await run.finish()
        except asyncio.CancelledError:
            if run is not None:
                await run.save_interrupted()
            raise
        except Exception:
            if run is not None:
                run.say_how_to_go_on("The run failed")
            raise
        finally:
            if run is not None:
                run.close()
            trace.trace_shutdown()
            run_logger.close()


class TrainingRun:
    def __init__(
        self,
        config: RunConfig,
        logger_of_run: ml_log.Logger,
        service_client: tinker.ServiceClient,
        training_client: tinker.TrainingClient,
        resumed_from: CheckpointRecord | None,
    ):
        self.config = config
        self.logger = logger_of_run
        self.service_client = service_client
        self.training_client = training_client
        self.resumed_from = resumed_from
        self.checkpoints = CheckpointManager(
            training_client,
            service_client,
            config.log_path,
            save_every=config.save_every,
            save_every_tokens=config.save_every_tokens,
            save_every_seconds=config.save_every_seconds,
            ttl_seconds=config.ttl_seconds,
            rolling_save_every=config.rolling_save_every,
            rolling_ttl_seconds=config.rolling_ttl_seconds,
            store=self.store,
            async_periodic_saves=config.async_periodic_saves,
        )
        if resumed_from is not None:
            self.checkpoints.resume_from(resumed_from)
        self.first_step = 0
        self.total_steps = 0
        self.steps: range = range(0)
        self.elapsed_tokens = 0  # trained on since the run began, over all its starts
        self.torn = (
            False  # some of a step's updates are submitted, and not all: such weights are not worth saving
        )
        self._next_step = 0
        self._state: LoopState = {}
        self._evaluators: Sequence[tuple[int, Sequence[Evaluator]]] = ()
        self._progress: Progress | None = None

    @classmethod
    async def open(
        cls, config: RunConfig, logger_of_run: ml_log.Logger, user_metadata: dict[str, str]
    ) -> "TrainingRun":
        metadata = recipe_user_metadata(config.recipe_name) | user_metadata
        service_client = await asyncio.to_thread(service.connect, config.base_url, metadata)
        record = await find_resume_checkpoint(config.log_path, service_client)
        if url := logger_of_run.get_logger_url():
            metadata = metadata | {"wandb_link": url}
        add_renderer_name_to_user_metadata(metadata, config.renderer_name)
        model_info.warn_if_renderer_not_recommended(config.model_name, config.renderer_name)
        training_client = await _training_client(config, service_client, record, metadata)
        return cls(config, logger_of_run, service_client, training_client, record)

    @property
    def store(self) -> TrainingRunStore:
        store = self.logger.store
        assert store is not None, "the JSON logger has one"
        return store

    @property
    def resume_state(self) -> LoopState:
        """What the checkpoint said of where to go on; empty for a run that starts."""
        return {} if self.resumed_from is None else self.resumed_from.to_dict()

    # --- the loop ------------------------------------------------------------------------------------

    def begin(
        self,
        total_steps: int,
        *,
        first_step: int | None = None,
        evaluators: Sequence[tuple[int, Sequence[Evaluator]]] = (),
        headline: str | None = None,
    ) -> None:
        """`first_step`: by default the batch the checkpoint names. `evaluators`: each group with its cadence in steps.

        `headline` is the metric the progress bar shows.
        """
        state = self.resume_state
        self.first_step = int(state.get("batch", 0)) if first_step is None else first_step
        self.total_steps = total_steps
        self.steps = range(self.first_step, total_steps)
        self.elapsed_tokens = int(state.get("elapsed_tokens", 0))
        self._next_step, self._state = self.first_step, {"batch": self.first_step} | _where(state)
        self._evaluators = evaluators
        if not self.steps:
            logger.info(
                "%s is complete: %d of %d steps are done. Raise max_steps, or add data, to train on.",
                self.config.log_path,
                self.first_step,
                total_steps,
            )
        elif self.resumed_from is not None:
            logger.info("going on with step %d of %d", self.first_step, total_steps)
        self._progress = Progress(self.first_step, total_steps, headline) if self.steps else None

    def expect(self, total_steps: int) -> None:
        """For loops that learn on the way how many steps there are: progress is told of so many from now on."""
        self.total_steps = total_steps
        if self._progress is not None:
            self._progress.expect(total_steps)

    async def before_step(
        self,
        step: int,
        state: LoopState,
        *,
        settle: Callable[[], Awaitable[None]] | None = None,
        sampling_client: tinker.SamplingClient | None = None,
    ) -> Metrics:
        """Save and evaluate if it is time for it, before anything of this step is submitted.

        So a checkpoint named after step n holds exactly the n updates before it, whatever is still under way, and
        evaluations at step n see the same weights. `state` is where this step stands. `settle` is awaited before a
        checkpoint, to log the rows of the steps it holds: a run that resumes there does not make them again.
        `sampling_client`: one of the weights of this moment, if the loop has it.
        """
        self._next_step, self._state = step, state
        tokens = self.elapsed_tokens
        if step > self.first_step and self.checkpoints.should_save(step, elapsed_tokens=tokens):
            if settle is not None:
                await settle()
            async with trace.scope_span("save_checkpoint"):
                await self.checkpoints.maybe_save_async(step, state, elapsed_tokens=tokens)
        due = [
            evaluator for every, some in self._evaluators if every and step % every == 0 for evaluator in some
        ]
        return await self.evaluate(due, step, sampling_client) if due else {}

    def submitted(self, step: int, state: LoopState, *, tokens: int = 0) -> None:
        """All of this step is with the server, which works in order: a checkpoint from now on has it.

        `state` is where the next step stands.
        """
        self._next_step, self._state = step + 1, state
        self.elapsed_tokens += tokens
        self.torn = False

    def log_step(
        self, step: int, metrics: Metrics, *, window: trace.IterationWindow | None = None, tokens: int = 0
    ) -> None:
        """One row of metrics, in the order of steps; the times of the window with it."""
        if window is not None:
            metrics = metrics | window.get_timing_metrics()
            window.save_timing(step, store=self.store)
            self._maybe_draw(window, step)
        self.logger.log_metrics(metrics, step=step)
        if self._progress is not None:
            self._progress.update(step + 1, metrics, tokens)

    def _maybe_draw(self, window: trace.IterationWindow, step: int) -> None:
        every = self.config.span_chart_every
        folder = iteration_dir(self.config.log_path, step)
        if every and step % every == 0 and folder is not None:
            trace.save_gantt_chart_html(window, step, folder / "timing_gantt.html")

    # --- evaluation ----------------------------------------------------------------------------------

    async def evaluate(
        self,
        evaluators: Sequence[Evaluator],
        step: int,
        sampling_client: tinker.SamplingClient | None = None,
    ) -> Metrics:
        return await evaluate_all(
            evaluators, self.training_client, step, self.write_report, sampling_client, self.store
        )

    def write_report(self, page: logtree.Trace, name: str, step: int) -> None:
        """What was said on the way, if anything was."""
        if not page.root.children:
            return
        self.store.write_logtree(step, page.to_dict(), base_name=name)
        if (folder := iteration_dir(self.config.log_path, step)) is not None:
            write_text_atomically(folder / f"{name}.html", page.get_html())

    # --- the end -------------------------------------------------------------------------------------

    async def finish(self) -> None:
        """Evaluate the final weights and save them; nothing, if that was done before."""
        if not self.steps and (self.resumed_from is None or self.resumed_from.final):
            await self.checkpoints.finalize_async()
            return
        evaluators = [evaluator for every, some in self._evaluators if every for evaluator in some]
        if evaluators:
            metrics = await self.evaluate(evaluators, self._next_step)
            self.logger.log_metrics(metrics, step=self._next_step)
        paths = await self.checkpoints.save_final_async(self._record_state())
        logger.info(
            "done: %d steps. Weights to train on: %s; weights to sample from: %s",
            self._next_step,
            paths.get("state_path"),
            paths.get("sampler_path"),
        )

    async def save_interrupted(self) -> None:
        """After Ctrl-C: all that was submitted, under a name of its own."""
        if self.torn or self._next_step <= self.first_step:
            where = f"in the middle of step {self._next_step}" if self.torn else "before the first step"
            self.say_how_to_go_on(f"Interrupted {where}")
            return
        logger.info("Interrupted: saving step %d (Ctrl-C again to leave at once)", self._next_step)
        paths = await save_checkpoint_async(
            self.training_client,
            f"interrupted-{self._next_step:06d}",
            self.config.log_path,
            self._record_state(),
            kind="state",
            ttl_seconds=self.config.ttl_seconds,
            store=self.store,
        )
        self.say_how_to_go_on(f"Interrupted at step {self._next_step}, saved as {paths['state_path']}")

    def say_how_to_go_on(self, what: str) -> None:
        command = shlex.join(sys.orig_argv)
        if "behavior_if_log_dir_exists=" not in command:
            command += " behavior_if_log_dir_exists=resume"
        logger.info("%s. To go on from the last checkpoint in %s: %s", what, self.config.log_path, command)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.close()

    def _record_state(self) -> LoopState:
        tokens = {"elapsed_tokens": self.elapsed_tokens} if self.elapsed_tokens else {}
        return {"batch": self._next_step} | self._state | tokens


async def evaluate_all(
    evaluators: Sequence[Evaluator],
    training_client: tinker.TrainingClient,
    step: int,
    write_report: Callable[[logtree.Trace, str, int], None] | None = None,
    sampling_client: tinker.SamplingClient | None = None,
    store: TrainingRunStore | None = None,
) -> Metrics:
    """All at once, on the weights of this moment; sampling ones share one snapshot.

    `write_report(page, name, step)` is given what each evaluator said on its way (`logtree`), also if it failed.
    Evaluators that record what they see do so in `store`.
    """

    async def evaluate(evaluator: Evaluator, label: str) -> Metrics:
        name = f"eval_{label}"
        with logtree.init_trace(f"{name} at step {step}") as page:
            try:
                async with trace.scope_span("run_evaluator"):
                    if isinstance(evaluator, TrainingClientEvaluator):
                        return await evaluator(training_client)
                    assert sampling_client is not None, "made below, if there is such an evaluator"
                    if store is not None and isinstance(evaluator, RecordingEvaluator):
                        return await evaluator.evaluate_step(sampling_client, step, label, store)
                    return await evaluator(sampling_client)
            finally:
                if write_report is not None:
                    write_report(page, name, step)

    for evaluator in evaluators:
        if not isinstance(evaluator, TrainingClientEvaluator | SamplingClientEvaluator):
            raise ConfigurationError(
                f"{type(evaluator).__name__} is neither a TrainingClientEvaluator nor a SamplingClientEvaluator"
            )
    async with trace.scope_span("evals"):
        if sampling_client is None and any(isinstance(each, SamplingClientEvaluator) for each in evaluators):
            sampling_client = await training_client.save_weights_and_get_sampling_client_async()
        results = await gather_or_cancel(
            evaluate(evaluator, _label(evaluator, i)) for i, evaluator in enumerate(evaluators)
        )
    return _merged(results)


async def _training_client(
    config: RunConfig,
    service_client: tinker.ServiceClient,
    record: CheckpointRecord | None,
    metadata: dict[str, str],
) -> tinker.TrainingClient:
    """From the checkpoint to resume with its optimizer, else from the weights to start from, else new."""
    if record is not None and record.state_path is not None:
        await _check_checkpoint(config, service_client, record.state_path)
        return await service_client.create_training_client_from_state_with_optimizer_async(
            record.state_path, user_metadata=metadata
        )
    if config.load_checkpoint_path is not None:
        await _check_checkpoint(config, service_client, config.load_checkpoint_path)
        return await service_client.create_training_client_from_state_async(
            config.load_checkpoint_path, user_metadata=metadata
        )
    return await service_client.create_lora_training_client_async(
        config.model_name, rank=config.lora_rank, seed=config.seed, user_metadata=metadata
    )


async def _check_checkpoint(config: RunConfig, service_client: tinker.ServiceClient, path: str) -> None:
    """A checkpoint brings its model and rank along; a config that says otherwise would be ignored in silence."""
    info = await rest_client(service_client).get_weights_info_by_tinker_path(path)
    if info.base_model != config.model_name:
        raise ConfigurationError(
            f"{path} was trained from {info.base_model}, and model_name={config.model_name}; set "
            f"model_name={info.base_model}, or start in another log_path without it"
        )
    if info.lora_rank is not None and info.lora_rank != config.lora_rank:
        raise ConfigurationError(
            f"{path} has rank {info.lora_rank}, and lora_rank={config.lora_rank}; set lora_rank={info.lora_rank}"
        )
    await check_renderer_name_for_checkpoint_async(service_client, path, config.renderer_name)


def _where(state: LoopState) -> LoopState:
    return {key: state[key] for key in ("batch", "epoch") if key in state}


def _label(evaluator: Evaluator, index: int) -> str:
    """For file names: the evaluator's own name, if it has one."""
    name = str(getattr(evaluator, "name", index))
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)


def _merged(results: Sequence[Metrics]) -> Metrics:
    merged: Metrics = {}
    for result in results:
        for key in result.keys() & merged.keys():
            logger.warning("two evaluators report %s; the later one is kept: give them names", key)
        merged |= result
    return merged
