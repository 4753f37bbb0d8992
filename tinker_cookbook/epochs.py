"""Training that goes through its data in epochs: which batch a step has, and what the optimizer is told at it."""

from collections.abc import Sequence
from typing import Any

import chz
import tinker

from tinker_cookbook.eval.evaluators import Evaluator, EvaluatorBuilder
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.run_config import RunConfig
from tinker_cookbook.utils.lr_scheduling import LRSchedule, compute_schedule_lr_multiplier


@chz.chz
class EpochConfig(RunConfig):
    learning_rate: float = chz.field(default=1e-4, doc="At its peak")
    lr_schedule: LRSchedule = chz.field(default="linear", doc="How it falls over the steps")
    warmup_steps: int = chz.field(default=0, doc="Steps over which it rises first")
    num_epochs: int = chz.field(default=1, doc="Times the data is gone through")
    adam_beta1: float = 0.9
    adam_beta2: float = 0.95
    adam_eps: float = 1e-8
    weight_decay: float = 0.0
    grad_clip_norm: float = chz.field(default=0.0, doc="Largest norm of a gradient; 0: not limited")
    eval_every: int = chz.field(default=10, doc="Steps between evaluations; 0: none")
    evaluator_builders: list[EvaluatorBuilder] = chz.field(default_factory=list)
    infrequent_evaluator_builders: list[EvaluatorBuilder] = chz.field(default_factory=list)
    infrequent_eval_every: int = chz.field(default=100, doc="Steps between the costly ones; 0: none")

    @chz.validate
    def _check_epochs(self) -> None:
        if self.num_epochs < 1:
            raise ConfigurationError(f"num_epochs={self.num_epochs} must be at least 1")

    def evaluators(self, held_out: Sequence[Evaluator]) -> list[tuple[int, list[Evaluator]]]:
        """Each group with its cadence; those of the data's own held-out part are among the frequent ones."""
        frequent = [build() for build in self.evaluator_builders]
        infrequent = [build() for build in self.infrequent_evaluator_builders]
        return [(self.eval_every, [*frequent, *held_out]), (self.infrequent_eval_every, infrequent)]


class EpochSchedule:
    """Steps as epochs and batches, and the learning rate over them."""

    def __init__(self, config: EpochConfig, batches: int):
        if batches < 1:
            raise ConfigurationError(
                "the data makes no whole batch: give more of it, or a smaller batch_size"
            )
        self._config = config
        self._batches = batches
        total = batches * config.num_epochs
        self.total_steps = total if config.max_steps is None else min(total, config.max_steps)

    def epoch_of(self, step: int) -> int:
        return step // self._batches

    def batch_of(self, step: int) -> int:
        return step % self._batches

    def state(self, step: int) -> dict[str, Any]:
        """Where this step stands, as the record of a checkpoint says it."""
        return {"epoch": self.epoch_of(step), "batch": self.batch_of(step), "num_batches": self._batches}

    def step_of(self, state: dict[str, Any]) -> int:
        if (before := state.get("num_batches", self._batches)) != self._batches:
            raise ConfigurationError(
                f"an epoch had {before} batches when the checkpoint was saved and has {self._batches} now: the data or "
                "batch_size has changed, and some of it would be trained on twice or never. Start in another log_path, "
                "with load_checkpoint_path if the weights are to be kept."
            )
        return int(state.get("epoch", 0)) * self._batches + int(state.get("batch", 0))

    def learning_rate(self, step: int) -> float:
        config = self._config
        factor = compute_schedule_lr_multiplier(
            config.lr_schedule, step, self.total_steps, config.warmup_steps
        )
        return config.learning_rate * factor

    def adam(self, step: int) -> tinker.AdamParams:
        config = self._config
        return tinker.AdamParams(
            learning_rate=self.learning_rate(step),
            beta1=config.adam_beta1,
            beta2=config.adam_beta2,
            eps=config.adam_eps,
            weight_decay=config.weight_decay,
            grad_clip_norm=config.grad_clip_norm,
        )
