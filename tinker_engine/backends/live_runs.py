"""The runs a worker holds: opened from the journal's words, moved out of memory when they idle."""

import os
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import load_file, save_file

from tinker_engine.backends.base_models import BaseModel
from tinker_engine.backends.messages import OpenRun, Train
from tinker_engine.backends.run_state import load_state
from tinker_engine.model.lora import LoraSpec, parameter_count
from tinker_engine.training.trainer import LoraRun, Trainer

Work = Generator[int, None, bytes]  # yields after each piece, returns the answer


@dataclass
class LiveRun:
    id: str
    client: str
    base: BaseModel
    lora: LoraSpec
    trainer: Trainer
    state: LoraRun | None  # None while it is moved out
    bytes: int
    queue: deque[Train] = field(default_factory=deque)
    work: Work | None = None  # of queue[0], once begun
    time: float = 0.0  # seconds of the machine its client had, as fairness counts them
    used: int = 0  # when it was last needed, in turns
    dirty: bool = False  # a gradient has accumulated since the last step
    position: int = 0  # of the last operation that changed it
    unsaved_seconds: float = 0.0  # what a replay since the last save would cost
    unsaved_bytes: int = 0  # what the journal keeps for it
    save_seconds: float = 0.1  # what the last save cost
    saving: bool = False

    @property
    def busy(self) -> bool:
        return bool(self.queue)


class LiveRuns:
    def __init__(
        self,
        find_base: Callable[[str, Path], BaseModel],
        pause: Callable[[], None],
        spill: Path,
        most_bytes: int,
    ):
        """`most_bytes`: of adapters, gradients and moments in memory; beyond it, idle runs go to `spill`."""
        self._find_base = find_base
        self._pause = pause
        self._spill = spill
        self._most_bytes = most_bytes
        self._runs: dict[str, LiveRun] = {}
        self._turn = 0
        spill.mkdir(parents=True, exist_ok=True)
        for left_over in spill.iterdir():
            left_over.unlink()

    def __iter__(self):
        return iter(self._runs.values())

    def __contains__(self, run: str) -> bool:
        return run in self._runs

    def get(self, run: str) -> LiveRun:
        return self._runs[run]

    @property
    def in_memory(self) -> int:
        return sum(run.state is not None for run in self._runs.values())

    def open(self, message: OpenRun) -> LiveRun:
        base = self._find_base(message.model, message.model_folder)
        lora = LoraSpec(
            rank=cast(int, message.lora["rank"]),
            seed=message.lora["seed"],
            **{name: bool(message.lora[name]) for name in ("train_attn", "train_mlp", "train_unembed")},
        )
        trainer = Trainer(base.decoder, room=message.room, pause=self._pause)
        size = 4 * parameter_count(base.decoder.spec, lora) * 4  # weights, gradient, two moments
        run = LiveRun(message.run, message.client, base, lora, trainer, None, size)
        self._make_room(size)
        run.state = trainer.create_run(lora)
        if message.state is not None:
            load_state(run.state, message.state, with_optimizer=True)
        self._runs[run.id] = run
        self._touch(run)
        return run

    def close(self, run: str) -> None:
        live = self._runs.pop(run, None)
        if live is not None:
            self._file(live).unlink(missing_ok=True)

    def need(self, run: LiveRun) -> LoraRun:
        """The run's state, brought back if it was moved out."""
        self._touch(run)
        if run.state is None:
            self._make_room(run.bytes)
            run.state = self._bring_back(run)
        return run.state

    def _touch(self, run: LiveRun) -> None:
        self._turn += 1
        run.used = self._turn

    def _make_room(self, size: int) -> None:
        here = [run for run in self._runs.values() if run.state is not None]
        total = sum(run.bytes for run in here)
        for run in sorted((run for run in here if not run.busy and not run.saving), key=lambda run: run.used):
            if total + size <= self._most_bytes:
                return
            self._move_out(run)
            total -= run.bytes

    def _move_out(self, run: LiveRun) -> None:
        state = run.state
        assert state is not None
        tensors = {
            "flat": state.adapter.flat,
            "grad": state.grad,
            "first": state.optimizer.first,
            "second": state.optimizer.second,
            "steps": torch.tensor(state.optimizer.steps),
        }
        save_file({name: tensor.cpu() for name, tensor in tensors.items()}, self._file(run))
        run.state = None

    def _bring_back(self, run: LiveRun) -> LoraRun:
        tensors = load_file(self._file(run))
        state = run.trainer.create_run(run.lora)
        state.adapter.flat.copy_(tensors["flat"])
        state.grad.copy_(tensors["grad"])
        state.optimizer.first.copy_(tensors["first"])
        state.optimizer.second.copy_(tensors["second"])
        state.optimizer.steps = int(tensors["steps"])
        os.unlink(self._file(run))
        return state

    def _file(self, run: LiveRun) -> Path:
        return self._spill / f"{folder_name(run.id)}.safetensors"


def folder_name(run: str) -> str:
    """Run ids have colons, which not every file system takes."""
    return run.replace(":", "_")
