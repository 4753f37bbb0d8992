"""Training on the real SmolLM2-135M-Instruct, on machines where it was pulled."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.tinker_engine.training.conftest import random_run
from tests.tinker_engine.training.reference import named_gradients, peft_gradients
from tinker_engine.model.decoder import Decoder
from tinker_engine.model.load import LoadedModel
from tinker_engine.model.lora import LoraSpec
from tinker_engine.training.trainer import Trainer
from tinker_engine.training.types import AdamParams, Datum

TEXTS = (
    "The tide was out, and the boats lay on their sides like",
    "Two and two are four; four and four are eight.",
)

pytestmark = pytest.mark.real


@pytest.fixture
def trainer(smollm2: LoadedModel) -> Trainer:
    return Trainer(Decoder(smollm2.spec, smollm2.weights))


@pytest.fixture
def data(smollm2: LoadedModel) -> list[Datum]:
    encoded = [smollm2.tokenizer.encode(text) for text in TEXTS]
    return [
        Datum(
            tokens[:-1], {"target_tokens": tokens[1:], "weights": np.ones(len(tokens) - 1, dtype=np.float32)}
        )
        for tokens in encoded
    ]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_loss_and_gradients_equal_transformers_and_peft(
    smollm2_folder: Path, trainer: Trainer, data: list[Datum], tmp_path: Path
) -> None:
    run = trainer.create_run(LoraSpec(8, seed=0))
    run.adapter.flat.add_(
        0.002 * torch.randn(run.adapter.flat.shape, generator=torch.Generator().manual_seed(0))
    )
    reference: Any = AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32)
    value, logprobs, grads = peft_gradients(
        reference, run.adapter, data, "cross_entropy", {}, tmp_path / "adapter"
    )
    output = trainer.forward_backward(run, data, "cross_entropy")
    assert output.metrics["loss:sum"] == pytest.approx(value, rel=1e-5)
    for own, expected in zip(output.logprobs, logprobs, strict=True):
        torch.testing.assert_close(own, expected, atol=1e-3, rtol=1e-3)
    own_grads = named_gradients(run.adapter, run.grad)
    for name, expected in grads.items():
        error = (own_grads[name] - expected).norm() / expected.norm()
        assert error < 1e-3, f"{name}: relative error {error:.1e}"


def test_two_runs_with_one_seed_are_identical_to_the_bit(trainer: Trainer, data: list[Datum]) -> None:
    finals: list[torch.Tensor] = []
    for _ in range(2):
        run = random_run(trainer, LoraSpec(8, seed=3))
        for _ in range(2):
            trainer.forward_backward(run, data, "cross_entropy")
            trainer.optim_step(run, AdamParams(learning_rate=1e-3))
        finals.append(run.adapter.flat)
    assert torch.equal(finals[0], finals[1])
