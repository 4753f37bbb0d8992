"""LoRA adapters: many on one frozen base, each with its own rank and targets.

All weights of an adapter live in one flat vector, so that a snapshot is one copy, the optimizer works
on whole vectors, and a norm is one reduction. The layers see views of it.
"""

import math
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tinker_engine.errors import InputError
from tinker_engine.model.linear import LoraPair, LoraRows
from tinker_engine.model.spec import ModelSpec

LORA_ALPHA = 32


@dataclass(frozen=True)
class LoraSpec:
    """What an adapter trains. At least one of the three groups must be selected."""

    rank: int
    seed: int | None = None  # of the initial weights; None draws one
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = True

    @property
    def scale(self) -> float:
        return LORA_ALPHA / self.rank


@dataclass(frozen=True)
class LoraLayer:
    """One fused layer: the Hugging Face names of its targets with their output widths."""

    key: str  # what the decoder asks by, e.g. "3.qkv"
    input_width: int
    targets: tuple[tuple[str, int], ...]

    @property
    def output_width(self) -> int:
        return sum(width for _, width in self.targets)

    @property
    def columns(self) -> tuple[tuple[int, int], ...]:
        ends = [sum(width for _, width in self.targets[: i + 1]) for i in range(len(self.targets))]
        return tuple((end - width, end) for end, (_, width) in zip(ends, self.targets, strict=True))


def lora_layers(model: ModelSpec, lora: LoraSpec) -> list[LoraLayer]:
    """Every layer that `lora` puts an update on, in the order of the flat vector."""
    d, inner = model.hidden_size, model.intermediate_size
    layers: list[LoraLayer] = []
    for i in range(model.num_layers):
        attn, mlp = f"model.layers.{i}.self_attn", f"model.layers.{i}.mlp"
        if lora.train_attn:
            qkv = ((f"{attn}.q_proj", model.q_width), (f"{attn}.k_proj", model.kv_width))
            layers.append(LoraLayer(f"{i}.qkv", d, (*qkv, (f"{attn}.v_proj", model.kv_width))))
            layers.append(LoraLayer(f"{i}.o", model.q_width, ((f"{attn}.o_proj", d),)))
        if lora.train_mlp:
            layers.append(
                LoraLayer(f"{i}.gate_up", d, ((f"{mlp}.gate_proj", inner), (f"{mlp}.up_proj", inner)))
            )
            layers.append(LoraLayer(f"{i}.down", inner, ((f"{mlp}.down_proj", d),)))
    if lora.train_unembed:
        layers.append(LoraLayer("head", d, (("lm_head", model.vocab_size),)))
    return layers


def parameter_count(model: ModelSpec, lora: LoraSpec) -> int:
    return lora.rank * sum(
        len(layer.targets) * layer.input_width + layer.output_width for layer in lora_layers(model, lora)
    )


class Adapter:
    """The weights of one LoRA adapter. New ones leave the model's output unchanged (B is zero)."""

    def __init__(
        self, model: ModelSpec, lora: LoraSpec, *, device: torch.device, dtype: torch.dtype = torch.float32
    ):
        _check(lora)
        self.model = model
        self.lora = lora
        self.frozen = False  # a snapshot: nothing may change its weights any more
        self.flat = torch.zeros(parameter_count(model, lora), dtype=dtype, device=device)
        self.layers = lora_layers(model, lora)
        self.leaves, self.pairs = self._views(self.flat)

    @classmethod
    def initialised(
        cls, model: ModelSpec, lora: LoraSpec, *, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> "Adapter":
        """A is uniform in ±1/√K, PEFT's default (Kaiming-uniform with a = √5); B is zero."""
        adapter = cls(model, lora, device=device, dtype=dtype)
        seed = secrets.randbits(63) if lora.seed is None else lora.seed
        generator = torch.Generator().manual_seed(seed)
        for layer, pair in zip(adapter.layers, adapter.pairs.values(), strict=True):
            bound = 1 / math.sqrt(layer.input_width)
            start = torch.empty(pair.a_JRK.shape, dtype=torch.float32).uniform_(
                -bound, bound, generator=generator
            )
            with torch.no_grad():
                pair.a_JRK.copy_(start)
        return adapter

    def snapshot(self) -> "Adapter":
        """An independent copy that later training does not touch."""
        copy = Adapter(self.model, self.lora, device=self.flat.device, dtype=self.flat.dtype)
        copy.flat.copy_(self.flat)
        copy.frozen = True
        return copy

    @property
    def nbytes(self) -> int:
        """Of the weights, twice once they were packed for sampling: that is done to all of them in one step."""
        first = next(iter(self.pairs.values()))
        return self.flat.nbytes * (2 if first.is_packed else 1)

    def bind_gradients(self, grad_flat: Tensor) -> None:
        """Make backward passes add to `grad_flat`, which is laid out as `flat`."""
        offset = 0
        for leaf in self.leaves:
            leaf.grad = grad_flat[offset : offset + leaf.numel()].view(leaf.shape)
            offset += leaf.numel()

    def target_weights(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """(Hugging Face module name, A [R, K], B [N, R]) of every target, as views."""
        for layer, pair in zip(self.layers, self.pairs.values(), strict=True):
            parts = pair.a_JRK.detach().chunk(len(layer.targets))
            for (name, _), a_RK, (start, end) in zip(layer.targets, parts, layer.columns, strict=True):
                yield name, a_RK, pair.b_NR.detach()[start:end]

    def _views(self, flat: Tensor) -> tuple[list[Tensor], dict[str, LoraPair]]:
        leaves: list[Tensor] = []
        pairs: dict[str, LoraPair] = {}
        offset, rank = 0, self.lora.rank

        def take(*shape: int) -> Tensor:
            nonlocal offset
            leaf = flat[offset : offset + math.prod(shape)].view(shape).detach().requires_grad_()
            offset += leaf.numel()
            leaves.append(leaf)
            return leaf

        for layer in self.layers:
            a_JRK = take(len(layer.targets) * rank, layer.input_width)
            b_NR = take(layer.output_width, rank)
            pairs[layer.key] = LoraPair(a_JRK, b_NR, layer.columns, self.lora.scale)
        return leaves, pairs


def _check(lora: LoraSpec) -> None:
    if lora.rank < 1:
        raise InputError("rank", f"must be at least 1, got {lora.rank}")
    if not (lora.train_attn or lora.train_mlp or lora.train_unembed):
        raise InputError("lora_config", "one of train_attn, train_mlp, train_unembed must be true")


class LoraBatch:
    """Which rows of the flat token axis belong to which adapter. Rows in none run the base model."""

    def __init__(self, ranges: list[tuple[int, int, Adapter]] | None = None, *, steady: bool = False):
        """`steady`: without gradients, a row's result does not depend on what other rows there are."""
        self.ranges = ranges or []
        self.steady = steady

    @classmethod
    def single(cls, adapter: Adapter | None, rows: int, *, steady: bool = False) -> "LoraBatch":
        return cls.runs([(adapter, rows)], steady=steady)

    @classmethod
    def runs(cls, lengths: Iterable[tuple[Adapter | None, int]], *, steady: bool = False) -> "LoraBatch":
        """From (adapter, rows) in the order of the axis; neighbours with one adapter become one range."""
        ranges: list[tuple[int, int, Adapter]] = []
        end = 0
        for adapter, rows in lengths:
            start, end = end, end + rows
            if ranges and ranges[-1][2] is adapter and ranges[-1][1] == start:
                ranges[-1] = (ranges[-1][0], end, ranges[-1][2])
            elif adapter is not None:
                ranges.append((start, end, adapter))
        return cls(ranges, steady=steady)

    @property
    def unchanging(self) -> bool:
        """Whether no adapter's weights will ever change."""
        return all(adapter.frozen for _, _, adapter in self.ranges)

    def at(self, key: str) -> list[LoraRows]:
        return [
            LoraRows(start, end, adapter.pairs[key], self.steady, adapter.frozen)
            for start, end, adapter in self.ranges
            if key in adapter.pairs
        ]
