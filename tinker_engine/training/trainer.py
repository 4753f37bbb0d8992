"""Forward, backward and optimizer steps of LoRA adapters on one frozen decoder."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tinker_engine.model.attention import PackedAttention
from tinker_engine.model.decoder import Decoder, Pause
from tinker_engine.model.lora import Adapter, LoraBatch, LoraSpec
from tinker_engine.training.check import check_data
from tinker_engine.training.head import Entries, head_pass
from tinker_engine.training.losses import (
    LOSSES,
    Loss,
    LossInputs,
    Options,
    find_loss,
    logprob_gradient,
    loss_metrics,
    read_options,
)
from tinker_engine.training.memory import activation_bytes, activation_room, micro_batch_tokens
from tinker_engine.training.optimizer import AdamW, check_adam_params
from tinker_engine.training.packing import MicroBatch, group_tokens, pack
from tinker_engine.training.types import AdamParams, Datum, Example, ForwardBackwardOutput

Steps = Generator[int, None, ForwardBackwardOutput]
"""A call in pieces: yields the tokens of each micro-batch once it is computed, and returns the output."""


class LoraRun:
    """One adapter in training: weights, accumulated gradient, optimizer."""

    def __init__(self, adapter: Adapter):
        self.adapter = adapter
        self.grad = torch.zeros_like(adapter.flat)
        self.optimizer = AdamW(adapter.flat)


@dataclass(frozen=True)
class _Batch:
    """A micro-batch with what the loss reads, flat over its N entries in the order of `packed.members`."""

    packed: MicroBatch
    entries: Entries
    inputs: LossInputs
    recompute: bool  # larger than the memory for activations, so that time is traded for it


@dataclass(frozen=True)
class _Call:
    """What stays the same over the micro-batches of one pass."""

    adapter: Adapter | None
    loss: Loss
    options: Options
    room: int  # bytes for activations
    grad: Tensor | None  # where gradients are added; None: forward only

    @property
    def group(self) -> int:
        """Datums whose logprobs are needed together, which is for the gradient alone."""
        return self.loss.group if self.grad is not None else 1


class Trainer:
    def __init__(self, decoder: Decoder, *, room: int | None = None, pause: Pause | None = None):
        """`room`: bytes that activations may take; by default half of what is free at each call.

        `pause` is called between layers, forwards and backwards, and between chunks of the head. It may sample
        from the same decoder; it must not train. On a GPU, autograd calls it from a thread of its own.
        """
        self.decoder = decoder
        self._room = room
        self._pause = pause

    def create_run(self, lora: LoraSpec) -> LoraRun:
        decoder = self.decoder
        dtype = torch.float64 if decoder.dtype == torch.float64 else torch.float32
        return LoraRun(Adapter.initialised(decoder.spec, lora, device=decoder.device, dtype=dtype))

    def forward_backward(
        self,
        run: LoraRun,
        data: Sequence[Datum],
        loss_fn: str,
        loss_fn_config: Mapping[str, float] | None = None,
    ) -> ForwardBackwardOutput:
        """Add the gradient of the summed loss to the run. On any error the run is as before."""
        return _to_the_end(self.forward_backward_steps(run, data, loss_fn, loss_fn_config))

    def forward_backward_steps(
        self,
        run: LoraRun,
        data: Sequence[Datum],
        loss_fn: str,
        loss_fn_config: Mapping[str, float] | None = None,
    ) -> Steps:
        """The same, one micro-batch at a time. The run changes only when the last step is done: not on an
        error, and not if the generator is closed. Calls on different runs may take turns; between two steps of
        one run, only its weights must stay as they are."""
        grad = torch.zeros_like(run.grad)
        output = yield from self._steps(run.adapter, data, loss_fn, loss_fn_config, grad)
        run.grad += grad
        return output

    def forward(
        self,
        adapter: Adapter | None,
        data: Sequence[Datum],
        loss_fn: str,
        loss_fn_config: Mapping[str, float] | None = None,
    ) -> ForwardBackwardOutput:
        """Logprobs and metrics alone; without an adapter, those of the base model."""
        return _to_the_end(self.forward_steps(adapter, data, loss_fn, loss_fn_config))

    def forward_steps(
        self,
        adapter: Adapter | None,
        data: Sequence[Datum],
        loss_fn: str,
        loss_fn_config: Mapping[str, float] | None = None,
    ) -> Steps:
        """The same, one micro-batch at a time; any number of calls may take turns."""
        return self._steps(adapter, data, loss_fn, loss_fn_config, None)

    def optim_step(self, run: LoraRun, params: AdamParams) -> dict[str, float]:
        """Apply and clear the accumulated gradient. A non-finite one is dropped and the step refused."""
        check_adam_params(params)
        try:
            return run.optimizer.step(run.adapter.flat, run.grad, params)
        finally:
            run.grad.zero_()

    def _steps(
        self,
        adapter: Adapter | None,
        data: Sequence[Datum],
        loss_fn: str,
        loss_fn_config: Mapping[str, float] | None,
        grad: Tensor | None,
    ) -> Steps:
        loss, options = find_loss(loss_fn), read_options(loss_fn, loss_fn_config)
        examples = check_data(data, loss_fn, loss, self.decoder.spec)
        room = activation_room(self.decoder.device) if self._room is None else self._room
        call = _Call(adapter, loss, options, room, grad)
        if call.group > 1 and not self._groups_fit(examples, call):
            return (yield from self._two_passes(examples, call))
        return (yield from self._one_pass(examples, call))

    def _two_passes(self, examples: list[Example], call: _Call) -> Steps:
        """For groups too large to be computed at once: all logprobs, then the gradient they give, datum by datum."""
        output = yield from self._one_pass(examples, replace(call, grad=None))
        logprob_N = torch.cat([logprobs.flatten() for logprobs in output.logprobs])
        inputs = _loss_inputs(examples, range(len(examples)))
        gradient_N = logprob_gradient(call.loss, logprob_N, inputs, call.options)
        parts = gradient_N.split([example.targets_TK.numel() for example in examples])
        linear = [
            replace(example, inputs_TK={"weights": -part.view_as(example.targets_TK)})
            for example, part in zip(examples, parts, strict=True)
        ]
        yield from self._one_pass(linear, replace(call, loss=LOSSES["cross_entropy"], options={}))
        return output

    def _one_pass(self, examples: list[Example], call: _Call) -> Steps:
        batches = self._batches(examples, call)
        flat_logprobs: list[Tensor] = []
        logprobs: dict[int, Tensor] = {}
        for batch in batches:
            logprob_N = self._micro_batch(batch, call)
            flat_logprobs.append(logprob_N)
            members = batch.packed.members
            parts = logprob_N.cpu().split([examples[i].targets_TK.numel() for i in members])
            logprobs |= {
                i: part.view(examples[i].target_shape) for i, part in zip(members, parts, strict=True)
            }
            yield len(batch.packed.tokens_T)
        inputs = _join([batch.inputs for batch in batches])
        metrics = loss_metrics(call.loss, torch.cat(flat_logprobs), inputs, call.options)
        return ForwardBackwardOutput([logprobs[i] for i in range(len(examples))], metrics)

    def _batches(self, examples: list[Example], call: _Call) -> list[_Batch]:
        decoder, tokens = self.decoder, [example.tokens_T for example in examples]
        largest = max(group_tokens(tokens, call.group))
        budget = micro_batch_tokens(decoder.spec, _rank(call), decoder.dtype, call.room, largest)
        packing = pack(tokens, budget, group=call.group)
        return [
            _gather(packed, examples, decoder.device, recompute=len(packed.tokens_T) > budget)
            for packed in packing
        ]

    def _groups_fit(self, examples: list[Example], call: _Call) -> bool:
        largest = max(group_tokens([example.tokens_T for example in examples], call.group))
        decoder = self.decoder
        token = activation_bytes(decoder.spec, _rank(call), decoder.dtype, recompute=True)
        return largest * token <= call.room

    def _micro_batch(self, batch: _Batch, call: _Call) -> Tensor:
        """Logprobs of the batch's entries; gradients are added to `call.grad`."""
        decoder, packed, adapter, pause = self.decoder, batch.packed, call.adapter, self._pause
        backward = call.grad is not None
        if adapter is not None and call.grad is not None:
            adapter.bind_gradients(call.grad)  # each time: another call may have bound its own since
        attend = PackedAttention(packed.segments, decoder.spec.head_dim)
        lora = LoraBatch.single(adapter, len(packed.tokens_T))
        tokens_T, positions_T = packed.tokens_T.to(decoder.device), packed.positions_T.to(decoder.device)
        recompute = backward and batch.recompute
        with torch.set_grad_enabled(backward):
            hidden = decoder.hidden(
                tokens_T, positions_T, packed.longest, attend, lora, recompute=recompute, pause=pause
            )
        with torch.no_grad():
            if not backward:
                return head_pass(decoder, adapter, hidden, batch.entries, pause=pause)[0]
            logprob_N, d_hidden = self._head_backward(hidden.detach(), batch, call)
        if hidden.requires_grad and bool(d_hidden.any()):
            hidden.backward(d_hidden)
        return logprob_N

    def _head_backward(self, hidden: Tensor, batch: _Batch, call: _Call) -> tuple[Tensor, Tensor]:
        """Logprobs of the entries and the gradient of the hidden states.

        A per-token loss gives each chunk's gradient on the spot. Others need all logprobs first, and then a second
        pass over the entries that have a gradient.
        """
        decoder, adapter, entries, pause = self.decoder, call.adapter, batch.entries, self._pause
        if call.loss.per_token:
            logprob_N, d_hidden = head_pass(
                decoder,
                adapter,
                hidden,
                entries,
                lambda some, lp: logprob_gradient(call.loss, lp, batch.inputs.select(some), call.options),
                _may_have_gradient(batch.inputs),
                pause,
            )
        else:
            logprob_N, _ = head_pass(decoder, adapter, hidden, entries, pause=pause)
            gradient_N = logprob_gradient(call.loss, logprob_N, batch.inputs, call.options)
            acting = gradient_N.nonzero().flatten()
            if not len(acting):
                return logprob_N, torch.zeros_like(hidden)
            chosen = Entries(entries.row_N[acting], entries.target_N[acting])
            _, d_hidden = head_pass(
                decoder, adapter, hidden, chosen, lambda some, lp: gradient_N[acting[some]], pause=pause
            )
        assert d_hidden is not None, "asked for with a gradient"
        return logprob_N, d_hidden


def _to_the_end(steps: Steps) -> ForwardBackwardOutput:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def _rank(call: _Call) -> int:
    return call.adapter.lora.rank if call.adapter is not None else 0


def _gather(packed: MicroBatch, examples: list[Example], device: torch.device, *, recompute: bool) -> _Batch:
    members = [examples[i] for i in packed.members]
    rows = [
        rows_T.repeat_interleave(example.targets_TK.shape[1])
        for rows_T, example in zip(packed.rows, members, strict=True)
    ]
    target_N = torch.cat([example.targets_TK.flatten() for example in members])
    entries = Entries(torch.cat(rows).to(device), target_N.to(device))
    return _Batch(packed, entries, _loss_inputs(examples, packed.members).to(device), recompute)


def _loss_inputs(examples: list[Example], numbers: Sequence[int]) -> LossInputs:
    members = [examples[i] for i in numbers]
    fields = {
        name: torch.cat([example.inputs_TK[name].flatten() for example in members])
        for name in members[0].inputs_TK
    }
    sequences = [torch.full((examples[i].targets_TK.numel(),), i) for i in numbers]
    return LossInputs(fields, torch.cat(sequences))


def _join(parts: list[LossInputs]) -> LossInputs:
    fields = {name: torch.cat([part[name] for part in parts]) for name in parts[0].fields}
    return LossInputs(fields, torch.cat([part.sequence_N for part in parts]))


def _may_have_gradient(inputs: LossInputs) -> Tensor:
    """A guess that only orders the work: tokens without weight or advantage seldom have a gradient."""
    strength = inputs.get("advantages")
    return (inputs["weights"] if strength is None else strength) != 0
