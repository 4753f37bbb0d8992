"""A few seconds of measuring, from which the speed of any model on this machine follows.

The best of several tries counts each time: other work on the machine only ever adds to what is measured.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from tinker_engine.model import tiny
from tinker_engine.model.decoder import Decoder
from tinker_engine.model.linear import FrozenLinear
from tinker_engine.model.load import expected_shapes
from tinker_engine.model.lora import LoraSpec
from tinker_engine.model.spec import ModelSpec
from tinker_engine.model.tokenizer import Tokenizer
from tinker_engine.planning.limits import Limits, measure, times
from tinker_engine.sampling.sampler import Sampler
from tinker_engine.sampling.types import SampleRequest, SamplingParams
from tinker_engine.training.trainer import Trainer
from tinker_engine.training.types import AdamParams, Datum

_ROUNDS = 3
_ROWS = 512  # of the products: more are hardly faster
_WIDEST = 2048  # from there on, a product's shape does not matter
_OVERHEAD_LAYERS = 4
_OVERHEAD_TRIES = 12


@dataclass(frozen=True)
class Calibration:
    limits: Limits
    shape: (
        float  # rate of this model's products, relative to those of the model that efficiencies are known of
    )
    training_overhead: float  # seconds per layer and micro-batch, whatever its size
    decode_overhead: float  # seconds per layer and step, however few rows


def calibrate(
    spec: ModelSpec,
    reference: ModelSpec,
    *,
    dtype: torch.dtype,
    device: torch.device,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Calibration:
    """`reference` is the model that the efficiencies are known of."""
    on_progress("measuring products and memory")
    rounds = [
        (
            measure(0.2, dtype=dtype, device=device, summary=min),
            _product_rate(spec, dtype, device),
            _product_rate(reference, dtype, device),
        )
        for _ in range(_ROUNDS)
    ]
    limits = Limits(
        max(each.gemm_flops for each, _, _ in rounds), max(each.bandwidth for each, _, _ in rounds)
    )
    shape = max(rate for _, rate, _ in rounds) / max(rate for _, _, rate in rounds)
    on_progress("measuring the fixed cost of a layer")
    decoder = _narrow_decoder(dtype, device)
    return Calibration(limits, shape, _training_overhead(decoder), _decode_overhead(decoder))


def _product_rate(spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> float:
    """FLOP/s over the products of one layer, forward and to the input's gradient."""
    d, q, kv, inner = spec.hidden_size, spec.q_width, spec.kv_width, spec.intermediate_size
    shapes = [(d, q + 2 * kv), (q, d), (d, 2 * inner), (inner, d)]
    shapes = [(min(k, _WIDEST), min(n, _WIDEST)) for k, n in shapes]
    pairs = [
        (
            torch.randn(_ROWS, k, dtype=dtype, device=device),
            FrozenLinear(torch.randn(n, k, dtype=dtype, device=device)),
        )
        for k, n in shapes
    ]

    def layer() -> None:
        for x, linear in pairs:
            linear.input_grad(linear(x))

    return sum(4.0 * _ROWS * k * n for k, n in shapes) / min(times(layer, 0.1, device))


def _narrow_decoder(dtype: torch.dtype, device: torch.device) -> Decoder:
    """So narrow that its arithmetic takes no time: what is left is the cost of calling it."""
    spec = replace(
        ModelSpec.from_folder(tiny.FOLDER),
        hidden_size=32,
        num_layers=_OVERHEAD_LAYERS,
        num_heads=2,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=32,
    )
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: (torch.randn(shape, generator=generator) / 32).to(device=device, dtype=dtype)
        for name, shape in expected_shapes(spec).items()
    }
    return Decoder(spec, weights)


def _training_overhead(decoder: Decoder) -> float:
    trainer = Trainer(decoder)
    run = trainer.create_run(LoraSpec(rank=8, seed=0))
    tokens = np.arange(17)
    datum = Datum(tokens[:-1], {"target_tokens": tokens[1:], "weights": np.ones(16, dtype=np.float32)})

    def step() -> None:
        trainer.forward_backward(run, [datum], "cross_entropy")
        trainer.optim_step(run, AdamParams())

    return min(times(step, 0.3, decoder.device)) / _OVERHEAD_LAYERS


def _decode_overhead(decoder: Decoder) -> float:
    sampler = Sampler(decoder, Tokenizer.from_folder(tiny.FOLDER), [])
    adapter = Trainer(decoder).create_run(LoraSpec(rank=8, seed=0)).adapter.snapshot()
    params = SamplingParams(max_tokens=_OVERHEAD_TRIES + 2, seed=0, stop=[])
    ticket = sampler.submit(SampleRequest([1, 2, 3], params, adapter=adapter))
    taken: list[float] = []
    while not ticket.done:
        started = time.perf_counter()
        sampler.step()
        taken.append(time.perf_counter() - started)
    return min(taken[1:]) / _OVERHEAD_LAYERS
