"""What a workload will need on this machine: memory, and time."""

from dataclasses import dataclass, replace
from math import prod

import torch

from tinker_engine.errors import MemoryLimitError
from tinker_engine.model.cache import CacheShape, slot_capacity
from tinker_engine.model.linear import packs
from tinker_engine.model.load import expected_shapes
from tinker_engine.model.lora import LoraSpec, parameter_count
from tinker_engine.model.spec import ModelSpec, RopeSpec
from tinker_engine.native import ops
from tinker_engine.planning.calibration import Calibration
from tinker_engine.planning.cost import decode_step, linear_weights, prefill, training_step
from tinker_engine.planning.workload import Workload
from tinker_engine.sampling.scheduler import MOST_ROWS
from tinker_engine.training.head import CHUNK_ELEMENTS
from tinker_engine.training.memory import SHARE_OF_FREE, activation_bytes, micro_batch_tokens

# Shares of the machine's limits that the engine reaches: benchmarks/results/engine.json, of SmolLM2-135M.
TRAINING_EFFICIENCY = 0.66  # 4 sequences of 512
DECODE_EFFICIENCY = 0.67  # 64 rows with an adapter, where the fixed cost of a step hardly counts

REFERENCE = ModelSpec(  # the widths of SmolLM2-135M, which the efficiencies were measured on
    architecture="LlamaForCausalLM",
    vocab_size=49152,
    hidden_size=576,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    intermediate_size=1536,
    max_context=8192,
    rope=RopeSpec(),
    norm_eps=1e-5,
    tied_embeddings=True,
)

_ADAPTER_BYTES = 4  # adapters are kept in fp32
_HEAP_HOLES = (
    1.15  # activations take so much more of the C library's heap than their size, by measurement on Linux
)
_OPTIMIZER_PASSES = 16  # over vectors as long as the adapter, read or written, in a step
_HEAD_COPIES = 3  # of a chunk of logits: the logits, their exponentials, their gradient
_CHOICE_COPIES = 4  # of a step's logits while tokens are chosen


@dataclass(frozen=True)
class Memory:
    """Bytes at the moment when most is used. Training and sampling take turns, so their own parts do not add up."""

    process: int
    weights: int
    packed: int
    adapter: int  # weights, gradient, the call's own gradient, two moments
    activations: int
    head: int
    optimizer: int  # temporaries of a step
    cache: int
    mapped: (
        int  # pages of the model's file that were copied since; the system takes them back when it needs to
    )
    micro_batches: int  # how many the trainer cuts a batch into
    recompute: bool  # sequences that are too long for the rest: less memory, a third more time

    @property
    def peak(self) -> int:
        turns = (self.activations + self.head, self.optimizer, self.cache)
        return self.process + self.weights + self.packed + self.adapter + max(turns)

    @property
    def resident(self) -> int:
        """What the system reports of the process at that moment."""
        return self.peak + self.mapped


@dataclass(frozen=True)
class Speed:
    training_seconds: float  # of a step
    training_tokens: float  # per second
    sampling_seconds: float  # until all samples are there
    sampling_tokens: float  # per second


def predict_memory(
    spec: ModelSpec,
    workload: Workload,
    *,
    dtype: torch.dtype,
    device: torch.device,
    free: int,
    process: int,
    mapped: bool = False,
) -> Memory:
    """`free` and `process`: bytes to be had, and bytes of Python and torch. `mapped`: see `stays_mapped`."""
    parameters = sum(map(prod, expected_shapes(spec).values()))
    adapter = parameter_count(spec, _lora(workload)) * _ADAPTER_BYTES
    tokens, recompute = _micro_batch(spec, workload, dtype, int(free * SHARE_OF_FREE))
    per_token = activation_bytes(spec, workload.rank, dtype, recompute=recompute)
    rows = min(tokens, max(16, CHUNK_ELEMENTS // spec.vocab_size))
    native = ops.serves(dtype, device)
    return Memory(
        process=process,
        weights=parameters * dtype.itemsize,
        packed=linear_weights(spec) * dtype.itemsize if packs(dtype, device) else 0,
        adapter=5 * adapter,
        activations=int(_HEAP_HOLES * tokens * per_token),
        # Our kernels keep the head's weight in a third order while they compute gradients.
        head=(_HEAD_COPIES * rows + native * spec.hidden_size) * spec.vocab_size * 4,
        optimizer=2 * adapter,
        # Samples come from a snapshot, which our kernels keep in a second order.
        cache=_cache_bytes(spec, workload, dtype, device) + (1 + native) * adapter,
        mapped=_fused_weights(spec) * dtype.itemsize if mapped else 0,
        micro_batches=-(-workload.batch * workload.tokens // tokens),
        recompute=recompute,
    )


def predict_speed(
    spec: ModelSpec, workload: Workload, memory: Memory, calibration: Calibration, *, dtype: torch.dtype
) -> Speed:
    training = _training_seconds(spec, workload, memory, calibration, dtype)
    sampling = _sampling_seconds(spec, workload, calibration, dtype)
    return Speed(
        training,
        workload.batch * workload.tokens / training,
        sampling,
        workload.samples * workload.new_tokens / sampling,
    )


def smaller(
    spec: ModelSpec, workload: Workload, *, dtype: torch.dtype, device: torch.device, free: int, process: int
) -> tuple[str, int] | None:
    """The first option that, halved often enough and alone, makes the workload fit; and its value."""
    for name in ("batch", "samples", "tokens", "new_tokens", "rank"):
        attempt = workload
        while getattr(attempt, name) > 1:
            attempt = replace(attempt, **{name: getattr(attempt, name) // 2})
            memory = predict_memory(spec, attempt, dtype=dtype, device=device, free=free, process=process)
            if memory.peak <= free:
                return name, getattr(attempt, name)
    return None


def _fused_weights(spec: ModelSpec) -> int:
    """Those that the decoder joins into one matrix, and so copies."""
    return (
        spec.num_layers * spec.hidden_size * (spec.q_width + 2 * spec.kv_width + 2 * spec.intermediate_size)
    )


def _lora(workload: Workload) -> LoraSpec:
    return LoraSpec(rank=workload.rank, seed=0)


def _micro_batch(spec: ModelSpec, workload: Workload, dtype: torch.dtype, room: int) -> tuple[int, bool]:
    """Tokens of the largest, as `pack` cuts sequences of one length; and whether activations are recomputed."""
    try:
        budget = micro_batch_tokens(spec, workload.rank, dtype, room, workload.tokens)
    except MemoryLimitError:  # the trainer would refuse; what it would need shows in the sum
        return workload.tokens, True
    sequences = min(workload.batch, max(1, budget // workload.tokens))
    return sequences * workload.tokens, workload.tokens > budget


def _cache_bytes(spec: ModelSpec, workload: Workload, dtype: torch.dtype, device: torch.device) -> int:
    """The prompt once; for each sample a slot, in blocks that double, next to the half as long one it outgrew."""
    rows = min(workload.samples, MOST_ROWS)
    block = 1 << (rows - 1).bit_length()
    slots = 1.5 * block * slot_capacity(workload.new_tokens)
    shape = CacheShape.of(spec, dtype, device)
    choice = _CHOICE_COPIES * rows * spec.vocab_size * 4
    return int((workload.prompt + slots) * shape.token_bytes) + choice


def _training_seconds(
    spec: ModelSpec, workload: Workload, memory: Memory, calibration: Calibration, dtype: torch.dtype
) -> float:
    cost = training_step(spec, _lora(workload), workload.batch, workload.tokens, itemsize=dtype.itemsize)
    products = cost.flops / (calibration.limits.gemm_flops * calibration.shape)
    arithmetic = (products + _between_products(spec, workload, calibration, dtype)) * (
        4 / 3 if memory.recompute else 1
    )
    calls = calibration.training_overhead * spec.num_layers * memory.micro_batches
    vector = parameter_count(spec, _lora(workload)) * _ADAPTER_BYTES
    return arithmetic + calls + _OPTIMIZER_PASSES * vector / calibration.limits.bandwidth


def _between_products(
    spec: ModelSpec, workload: Workload, calibration: Calibration, dtype: torch.dtype
) -> float:
    """Seconds for norms, rotations, activations: they grow with the widths, not with their squares, and so weigh
    more in narrow models. Of the reference they are what the efficiency leaves."""
    cost = training_step(REFERENCE, _lora(workload), workload.batch, workload.tokens)
    reference = (1 / TRAINING_EFFICIENCY - 1) * cost.flops / calibration.limits.gemm_flops
    widths, reference_widths = (
        activation_bytes(each, workload.rank, dtype, recompute=False) for each in (spec, REFERENCE)
    )
    return reference * widths / reference_widths


def _sampling_seconds(
    spec: ModelSpec, workload: Workload, calibration: Calibration, dtype: torch.dtype
) -> float:
    lora, limits, itemsize = _lora(workload), calibration.limits, dtype.itemsize
    limits = replace(limits, gemm_flops=limits.gemm_flops * calibration.shape)
    rows, rounds = min(workload.samples, MOST_ROWS), -(-workload.samples // MOST_ROWS)
    context = workload.prompt + workload.new_tokens / 2
    step = decode_step(spec, lora, rows, context, itemsize=itemsize).seconds(limits) / DECODE_EFFICIENCY
    step += calibration.decode_overhead * spec.num_layers
    begin = prefill(spec, lora, workload.prompt, itemsize=itemsize).seconds(limits) / TRAINING_EFFICIENCY
    return begin + rounds * workload.new_tokens * step
