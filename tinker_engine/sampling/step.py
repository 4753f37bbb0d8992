"""The forward pass of a sampler: by torch, or all layers in one call of a kernel.

The structures are those of `kernels.c`. They hold addresses only; what is at those is kept by the decoder and by the
adapters, which whoever samples keeps.
"""

import ctypes
import weakref
from ctypes import c_double, c_int64, c_void_p

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tinker_engine.model.decoder import Decoder, Layer
from tinker_engine.model.linear import FrozenLinear, PackedPair
from tinker_engine.model.lora import Adapter, LoraBatch
from tinker_engine.model.threads import serial, threads_for
from tinker_engine.native import ops
from tinker_engine.sampling.attend import DecodeAttention, PrefillAttention, PrefillPart, RowKeys

_MOST_TARGETS = 3  # that share an input: q, k, v
_PLACES = ("qkv", "o", "gate_up", "down")  # of a layer, for updates


class _Linear(ctypes.Structure):
    _fields_ = (("packed", c_void_p), ("bias", c_void_p), ("n", c_int64), ("k", c_int64))


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("attn_norm", "q_norm", "k_norm", "mlp_norm")),
        *((name, _Linear) for name in ("qkv", "output", "gate_up", "down")),
    )


class _Target(ctypes.Structure):
    _fields_ = (("packed", c_void_p), ("start", c_int64), ("end", c_int64))


class _Update(ctypes.Structure):
    _fields_ = (
        ("a", c_void_p),
        ("targets", c_int64),
        ("rank", c_int64),
        ("scale", c_double),
        ("b", _Target * _MOST_TARGETS),
    )


class _Run(ctypes.Structure):
    _fields_ = (("start", c_int64), ("end", c_int64), ("updates", c_void_p))


class _Shape(ctypes.Structure):
    _fields_ = (
        *((name, c_int64) for name in ("layers", "rows", "hidden", "heads", "groups", "width", "inner")),
        *((name, c_int64) for name in ("runs", "prompts", "room")),
        *((name, c_double) for name in ("eps", "scale")),
        *((name, c_void_p) for name in ("cosines", "sines", "norm")),
    )


class Step:
    """The forward pass of a sampler: new tokens of prompts, or one token per row. Gives the final normed states."""

    def __init__(self, decoder: Decoder):
        self._decoder = decoder
        self._layers = AllLayers(decoder) if _serves(decoder) else None

    @property
    def native(self) -> bool:
        """Whether a kernel does it, for adapters that do not change."""
        return self._layers is not None

    def of_prompts(
        self, tokens_T: Tensor, positions_T: Tensor, parts: list[PrefillPart], lora: LoraBatch
    ) -> Tensor:
        """Their keys and values are put into the prefixes."""
        longest = max(part.done + part.rows.stop - part.rows.start for part in parts)
        if self._layers is not None and lora.unchanging:
            lines = np.array([_part(part) for part in parts], dtype=np.int64)
            return self._layers(tokens_T, positions_T, longest, lora, prompts=lines)
        spec, device = self._decoder.spec, self._decoder.device
        attend = PrefillAttention(parts, spec.num_heads, spec.head_dim, device)
        with serial():
            return self._decoder.hidden(tokens_T, positions_T, longest, attend, lora)

    def of_rows(
        self, tokens_T: Tensor, positions_T: Tensor, longest: int, keys: RowKeys, lora: LoraBatch
    ) -> Tensor:
        """Their keys and values are put into the buckets, behind the rows' own."""
        if self._layers is not None and lora.unchanging:
            return self._layers(tokens_T, positions_T, longest, lora, keys=_key_lines(keys, len(tokens_T)))
        attend = DecodeAttention(keys, self._decoder.spec.head_dim, self._decoder.device, steady=lora.steady)
        with serial():
            return self._decoder.hidden(tokens_T, positions_T, longest, attend, lora)


_NO_LINES = np.zeros((0, 0), dtype=np.int64)


class AllLayers:
    """All of them in one call of a kernel, in which what becomes of a row depends on no other."""

    def __init__(self, decoder: Decoder):
        self.decoder = decoder
        self._lines = (_Layer * len(decoder.layers))(*map(_layer, decoder.layers))
        self._updates: weakref.WeakKeyDictionary[Adapter, _Updates] = weakref.WeakKeyDictionary()

    def __call__(
        self,
        tokens_T: Tensor,
        positions_T: Tensor,
        longest: int,
        lora: LoraBatch,
        *,
        keys: np.ndarray = _NO_LINES,
        prompts: np.ndarray = _NO_LINES,
    ) -> Tensor:
        """`keys`: a line for each row; or `prompts`: a line for each part."""
        spec, rows = self.decoder.spec, len(tokens_T)
        x_TD = F.embedding(tokens_T, self.decoder.embedding)
        cos, sin = (angles.contiguous() for angles in self.decoder.rope.at(positions_T, longest))
        threads = threads_for(rows * spec.hidden_size * 2 * spec.intermediate_size)
        runs = [(start, end, self._updates_of(adapter)) for start, end, adapter in lora.ranges]
        wide = 2 * spec.hidden_size + 2 * (spec.q_width + spec.kv_width) + 3 * spec.intermediate_size
        low = sum((end - start) * updates.widest for start, end, updates in runs)
        room = ops.attention_room(longest, spec.head_dim) if len(prompts) else ops.attend_room(longest)
        scratch = torch.empty(rows * wide + low + threads * room)
        lines = (_Run * len(runs))(*((start, end, updates.address) for start, end, updates in runs))
        shape = _Shape(
            *(spec.num_layers, rows, spec.hidden_size, spec.num_heads, spec.num_kv_heads, spec.head_dim),
            *(spec.intermediate_size, len(runs), len(prompts), room, spec.norm_eps, spec.head_dim**-0.5),
            *(cos.data_ptr(), sin.data_ptr(), self.decoder.norm.data_ptr()),
        )
        at = scratch.data_ptr()
        size = scratch.element_size()
        ops.loaded().te_layers(
            *(x_TD.data_ptr(), ctypes.addressof(self._lines), keys.ctypes.data, prompts.ctypes.data),
            *(ctypes.addressof(lines), ctypes.addressof(shape), at),
            *(at + size * rows * wide, at + size * (rows * wide + low), threads),
        )
        return x_TD

    def _updates_of(self, adapter: Adapter) -> "_Updates":
        if adapter not in self._updates:
            self._updates[adapter] = _Updates(adapter)
        return self._updates[adapter]


def _part(part: PrefillPart) -> tuple[int, ...]:
    kv = part.prefix.kv
    rows = part.rows
    return rows.start, rows.stop - rows.start, kv.data_ptr(), part.done, *kv.stride()[:3]


def _key_lines(keys: RowKeys, rows: int) -> np.ndarray:
    """Of each row: where the keys of its prefix begin, how many there are, how far the next layer, the values and the
    next group are; the same of its own."""
    lines = np.zeros((rows, 10), dtype=np.int64)
    for prefix, places in keys.prefixes:
        lines[places, :5] = prefix.kv.data_ptr(), len(prefix), *prefix.kv.stride()[:3]
    for bucket, places in keys.buckets:
        layer, values, slot, group = bucket.kv.stride()[:4]
        lines[places, 5] = bucket.kv.data_ptr() + np.arange(len(places)) * slot * bucket.kv.element_size()
        lines[places, 6] = bucket.lengths
        lines[places, 7:] = layer, values, group
    return lines


class _Updates:
    """What an adapter adds in each place of every layer."""

    def __init__(self, adapter: Adapter):
        keys = [f"{i}.{place}" for i in range(adapter.model.num_layers) for place in _PLACES]
        pairs = [adapter.pairs[key].packed if key in adapter.pairs else None for key in keys]
        self._lines = (_Update * len(pairs))(*map(_update, pairs))
        self.address = ctypes.addressof(self._lines)
        self.widest = max((pair.a_JRK.n for pair in pairs if pair is not None), default=0)


def _serves(decoder: Decoder) -> bool:
    spec = decoder.spec
    widths = (spec.hidden_size, spec.intermediate_size, spec.head_dim // 2)
    return ops.serves(decoder.dtype, decoder.device) and all(width % ops.LANES == 0 for width in widths)


def _layer(layer: Layer) -> _Layer:
    norms = (layer.attn_norm, layer.q_norm, layer.k_norm, layer.mlp_norm)
    linears = (layer.qkv, layer.output, layer.gate_up, layer.down)
    return _Layer(*map(_address, norms), *map(_linear, linears))


def _linear(linear: FrozenLinear) -> _Linear:
    assert linear.packed is not None, "there are kernels for the model"
    return _Linear(linear.packed.data.data_ptr(), _address(linear.bias_N), linear.packed.n, linear.packed.k)


def _update(pair: PackedPair | None) -> _Update:
    if pair is None:
        return _Update()
    targets = [
        _Target(b_NR.data.data_ptr(), start, end)
        for b_NR, (start, end) in zip(pair.b_NR, pair.columns, strict=True)
    ]
    rank = pair.a_JRK.n // len(targets)
    return _Update(
        pair.a_JRK.data.data_ptr(), len(targets), rank, pair.scale, (_Target * _MOST_TARGETS)(*targets)
    )


def _address(weight: Tensor | None) -> int | None:
    if weight is None:
        return None
    assert (weight.is_contiguous(), weight.dtype) == (True, torch.float32), "kernels can read it"
    return weight.data_ptr()
