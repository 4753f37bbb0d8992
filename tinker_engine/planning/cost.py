"""The arithmetic and memory traffic that a model needs, whoever computes it."""

from dataclasses import dataclass

from tinker_engine.model.lora import LoraSpec, parameter_count
from tinker_engine.model.spec import ModelSpec
from tinker_engine.planning.limits import Limits


@dataclass(frozen=True)
class Cost:
    flops: float
    bytes_read: float

    def seconds(self, limits: Limits) -> float:
        """No less than the slower of the two."""
        return max(self.flops / limits.gemm_flops, self.bytes_read / limits.bandwidth)


def linear_weights(spec: ModelSpec) -> int:
    d = spec.hidden_size
    attention = d * (spec.q_width + 2 * spec.kv_width) + spec.q_width * d
    return spec.num_layers * (attention + 3 * d * spec.intermediate_size) + d * spec.vocab_size


def training_step(spec: ModelSpec, lora: LoraSpec, sequences: int, length: int, *, itemsize: int = 4) -> Cost:
    """Forward, and backward to the activations (frozen weights get no gradient) and to the adapter."""
    adapter = parameter_count(spec, lora)
    attention = 4 * (length / 2) * spec.q_width * spec.num_layers  # forward, causal
    per_token = 4 * linear_weights(spec) + 6 * adapter + 3.5 * attention
    return Cost(per_token * sequences * length, itemsize * (2.0 * linear_weights(spec) + adapter))


def prefill(spec: ModelSpec, lora: LoraSpec | None, length: int, *, itemsize: int = 4) -> Cost:
    """The keys and values of one prompt."""
    weights = linear_weights(spec) + (parameter_count(spec, lora) if lora else 0)
    attention = 4 * (length / 2) * spec.q_width * spec.num_layers  # causal
    return Cost(length * (2 * weights + attention), float(itemsize * weights))


def decode_step(
    spec: ModelSpec, lora: LoraSpec | None, rows: int, context: float, *, itemsize: int = 4
) -> Cost:
    """One token for each row: all weights are read once, and each row's keys and values."""
    weights = linear_weights(spec) + (parameter_count(spec, lora) if lora else 0)
    attention = 4 * context * spec.q_width * spec.num_layers
    cached = 2 * spec.kv_width * spec.num_layers * context
    return Cost(rows * (2 * weights + attention), itemsize * (weights + rows * cached))
