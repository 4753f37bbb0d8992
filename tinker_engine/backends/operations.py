"""What each kind of training operation does to a run. An operation yields after every piece of its work."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

from tinker_engine.backends.base_models import Snapshots
from tinker_engine.backends.live_runs import LiveRun, LiveRuns, Work, folder_name
from tinker_engine.backends.messages import FromWorker, Saved, Train, Trouble
from tinker_engine.backends.run_state import Captured, load_state
from tinker_engine.errors import InputError
from tinker_engine.model.lora_io import write_adapter
from tinker_engine.store.folders import remove_folder, whole_folder
from tinker_engine.training.losses import read_name
from tinker_engine.training.optimizer import check_adam_params
from tinker_engine.wire.body import read_json
from tinker_engine.wire.optimizer import read_optim_step
from tinker_engine.wire.training import ForwardBackwardCall, decode_forward_backward, encode_forward_backward

# A run is saved when replaying its journal would cost so much more than a save.
REPLAY_SECONDS = 10.0
REPLAY_PER_SAVE = 5.0
JOURNAL_BYTES = 256 << 20


class Operations:
    def __init__(
        self,
        runs: LiveRuns,
        snapshots: Snapshots,
        data: Path,
        send: Callable[[FromWorker], None],
        *,
        durable: bool,
    ):
        self._runs = runs
        self._snapshots = snapshots
        self._autosaves = data / "autosaves"
        self._send = send
        self._durable = durable

    def begin(self, run: LiveRun, op: Train) -> Work:
        operations: dict[str, Callable[[LiveRun, Train], Work]] = {
            "create": self._create,
            "forward_backward": self._forward_backward,
            "optim_step": self._optim_step,
            "drop_gradient": self._drop_gradient,
            "load_weights": self._load_weights,
            "save_weights": self._save_weights,
            "save_sampler": self._save_adapter,
            "save_external": self._save_adapter,
        }
        return operations[op.kind](run, op)

    def save_if_due(self, run: LiveRun) -> None:
        """Between operations: save beside the work if a replay has become expensive."""
        if run.dirty or run.saving or run.state is None:
            return
        worth = max(REPLAY_SECONDS, REPLAY_PER_SAVE * run.save_seconds)
        if run.unsaved_seconds > worth or run.unsaved_bytes > JOURNAL_BYTES:
            self._save_beside(run)

    def save_now(self, run: LiveRun) -> None:
        """Wait until the run is saved. Not while a gradient accumulates: that is in the journal alone."""
        if run.dirty or run.position == 0:
            return
        state = self._runs.need(run)
        self._write_autosave(run, Captured.of(state), run.position)

    def _save_beside(self, run: LiveRun) -> None:
        captured, position = Captured.of(self._runs.need(run)), run.position
        run.saving, run.unsaved_seconds, run.unsaved_bytes = True, 0.0, 0

        def write() -> None:
            try:
                self._write_autosave(run, captured, position)
            except OSError as error:  # the journal still has everything
                self._send(Trouble(f"{run.id} could not be saved, its journal goes on growing: {error}"))
            finally:
                run.saving = False

        threading.Thread(target=write, name="autosave", daemon=False).start()

    def _write_autosave(self, run: LiveRun, captured: Captured, position: int) -> None:
        started = time.perf_counter()
        folder = self._autosaves / f"{folder_name(run.id)}.{position}"
        if not folder.exists():  # after a replay the same state may be there already
            try:
                with whole_folder(folder, sync=self._durable) as temporary:
                    captured.write(temporary, run.base.name)
            except SafetensorError as error:  # how it says that a disk is full
                raise OSError(f"{folder.name} could not be written: {error}") from error
        run.save_seconds = time.perf_counter() - started
        self._send(Saved(run.id, position, folder))

    def _create(self, run: LiveRun, op: Train) -> Work:
        yield 0
        return b""

    def _forward_backward(self, run: LiveRun, op: Train) -> Work:
        call = decode_forward_backward(op.body)
        loss, config = _loss(call)
        state = self._runs.need(run)
        if call.forward_only:
            output = yield from run.trainer.forward_steps(state.adapter, call.data, loss, config)
        else:
            output = yield from run.trainer.forward_backward_steps(state, call.data, loss, config)
            run.dirty = True
            self._changed(run, op)
        return encode_forward_backward(output)

    def _optim_step(self, run: LiveRun, op: Train) -> Work:
        state = self._runs.need(run)
        call = read_optim_step(read_json(op.body))
        check_adam_params(
            call.params
        )  # up to here nothing has changed; from here on a failure drops the gradient
        run.dirty = False
        self._changed(run, op)
        metrics = run.trainer.optim_step(state, call.params)
        yield 0
        return json.dumps({"metrics": metrics}).encode()

    def _drop_gradient(self, run: LiveRun, op: Train) -> Work:
        """What a step that failed in the past did."""
        self._runs.need(run).grad.zero_()
        run.dirty = False
        self._changed(run, op)
        yield 0
        return b""

    def _load_weights(self, run: LiveRun, op: Train) -> Work:
        assert op.source is not None
        load_state(self._runs.need(run), op.source, with_optimizer=op.with_optimizer)
        run.dirty = False
        self._changed(run, op)
        yield 0
        try:
            self.save_now(run)  # a replay should not depend on a checkpoint that its owner may delete
        except OSError as error:  # but it can
            self._send(Trouble(f"{run.id} could not be saved after it was loaded: {error}"))
        return b""

    def _save_weights(self, run: LiveRun, op: Train) -> Work:
        assert op.target is not None
        remove_folder(op.target)  # written before a crash, and recorded nowhere
        with whole_folder(op.target) as folder:
            Captured.of(self._runs.need(run)).write(folder, run.base.name)
        yield 0
        return b""

    def _save_adapter(self, run: LiveRun, op: Train) -> Work:
        assert op.target is not None
        adapter = self._runs.need(run).adapter.snapshot()
        remove_folder(op.target)
        # An ephemeral snapshot is worth no wait for the disk where others are not durable either.
        with whole_folder(op.target, sync=self._durable or op.kind == "save_external") as folder:
            write_adapter(adapter, folder, run.base.name)
        if op.kind == "save_sampler":
            self._snapshots.put(op.target.name, adapter)
        yield 0
        return b""

    def _changed(self, run: LiveRun, op: Train) -> None:
        run.position = op.position
        run.unsaved_bytes += len(op.body)


def _loss(call: ForwardBackwardCall) -> tuple[str, dict[str, float]]:
    loss, config = read_name(call.loss_fn, call.loss_fn_config)
    numbers: dict[str, float] = {}
    for name, value in config.items():
        if isinstance(value, str):
            raise InputError(f"loss_fn_config.{name}", f"must be a number for {loss}, got {value!r}")
        numbers[name] = value
    return loss, numbers
