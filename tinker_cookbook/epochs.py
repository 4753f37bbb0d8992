"""Training that goes through its data in epochs: which batch a step has, and what the optimizer is told at it."""

from typing import Any, Protocol

import tinker

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.utils.lr_scheduling import LRSchedule, compute_schedule_lr_multiplier


class EpochConfig(Protocol):
    """The fields of a trainer's config that are read here."""

    @property
    def num_epochs(self) -> int: ...
    @property
    def max_steps(self) -> int | None: ...
    @property
    def learning_rate(self) -> float: ...
    @property
    def lr_schedule(self) -> LRSchedule: ...
    @property
    def warmup_steps(self) -> int: ...
    @property
    def adam_beta1(self) -> float: ...
    @property
    def adam_beta2(self) -> float: ...
    @property
    def adam_eps(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def grad_clip_norm(self) -> float: ...


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
