from typing import Any

import numpy as np
import pytest
import torch

from tests.tinker_engine.families import make_decoder, make_reference
from tinker_engine.model.lora import LoraSpec
from tinker_engine.training.trainer import LoraRun, Trainer
from tinker_engine.training.types import Datum


@pytest.fixture
def trainer() -> Trainer:
    return Trainer(make_decoder(make_reference("llama")))


@pytest.fixture
def run(trainer: Trainer) -> LoraRun:
    return random_run(trainer)


def random_run(trainer: Trainer, lora: LoraSpec | None = None) -> LoraRun:
    """A run in mid-training: B is not zero."""
    run = trainer.create_run(lora or LoraSpec(4, seed=0))
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(run.adapter.flat.shape, generator=generator, dtype=run.adapter.flat.dtype)
    run.adapter.flat.add_(0.05 * noise)
    return run


def policy_data(lengths: list[int], vocabulary: int = 131, seed: int = 0, prompt: int = 0) -> list[Datum]:
    """Sequences with everything a policy loss reads; the first `prompt` tokens are common and not trained on."""
    generator = np.random.default_rng(seed)
    shared = generator.integers(0, vocabulary, prompt)
    data: list[Datum] = []
    for length in lengths:
        full = np.concatenate((shared, generator.integers(0, vocabulary, length + 1)))
        size = len(full) - 1
        acted = np.arange(size) >= prompt - 1
        inputs: dict[str, Any] = {
            "target_tokens": full[1:],
            "logprobs": np.where(acted, -4.9 + generator.normal(size=size), 0).astype(np.float32),
            "advantages": np.where(acted, generator.normal(size=size), 0).astype(np.float32),
        }
        data.append(Datum(full[:-1], inputs))
    return data


def supervised(data: list[Datum], seed: int = 1) -> list[Datum]:
    """The same sequences with real-valued weights, some of them zero and some negative."""
    generator = np.random.default_rng(seed)
    result: list[Datum] = []
    for datum in data:
        weights = generator.normal(size=len(datum.tokens)).astype(np.float32)
        weights[generator.random(len(weights)) < 0.3] = 0
        result.append(
            Datum(datum.tokens, {"target_tokens": datum.loss_fn_inputs["target_tokens"], "weights": weights})
        )
    return result
