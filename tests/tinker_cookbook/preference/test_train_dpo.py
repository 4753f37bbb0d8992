"""What the config of preference training refuses, and what is shown of the data."""

import asyncio
import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tinker_cookbook.fake_service import FakeService, FakeTrainingClient
from tests.tinker_cookbook.preference.pairs import labeled, pairs, polite, singles
from tests.tinker_cookbook.rl.tiny import MODEL
from tinker_cookbook import display, service
from tinker_cookbook.exceptions import ConfigurationError, DataValidationError
from tinker_cookbook.preference import train_dpo
from tinker_cookbook.tokenizer_utils import get_tokenizer

PAIRS = pairs([polite(i) for i in range(4)])


def config(tmp_path: Path, **changes: Any) -> train_dpo.Config:
    fields: dict[str, Any] = {"dataset_builder": PAIRS, "model_name": MODEL, "recipe_name": "test", **changes}
    return train_dpo.Config(log_path=str(tmp_path / "run"), **fields)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"loss": "dqo"}, "no preference loss 'dqo'; use one of dpo, ipo, simpo, orpo, kto"),
        ({"dpo_beta": math.nan}, "dpo_beta=nan"),
        ({"dpo_beta": -0.1}, "dpo_beta=-0.1"),
        ({"label_smoothing": 0.7}, "less than 0.5"),
        ({"loss": "ipo", "label_smoothing": 0.1}, "no option label_smoothing"),
        ({"loss": "simpo", "loss_options": {"gama": 1.0}}, "gamma, label_smoothing"),
        ({"loss": "orpo", "reference_model_name": "x"}, "has no reference"),
        ({"num_epochs": 0}, "num_epochs=0"),
        ({"num_replicas": 0}, "num_replicas=0"),
    ],
)
def test_a_field_that_cannot_work_is_refused(tmp_path, changes, words):
    with pytest.raises(ConfigurationError, match=words):
        config(tmp_path, **changes)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"dataset_builder": pairs([])}, DataValidationError, "no pairs to learn from"),
        ({"dataset_builder": pairs([labeled("q", "x", "y", "Tie")])}, DataValidationError, "1 ties"),
        ({"dataset_builder": pairs([labeled("q", "x", "")])}, DataValidationError, "row 0: .* empty"),
        ({"loss": "kto"}, ConfigurationError, "KTODatasetBuilder"),
        ({"dataset_builder": singles([polite(i) for i in range(4)])}, ConfigurationError, "loss=kto"),
    ],
)
def test_data_that_cannot_be_learned_from_is_refused_before_anything_is_trained(
    tmp_path, monkeypatch, changes, error, words
):
    fake = FakeService(model=MODEL)
    monkeypatch.setattr(service, "connect", lambda *_: fake)
    with pytest.raises(error, match=words):
        train_dpo.main(config(tmp_path, **changes))
    assert [call for call in fake.calls if call.startswith(("forward", "optim"))] == []


def test_a_step_that_is_submitted_has_its_row_also_when_the_run_is_interrupted(tmp_path, monkeypatch):
    fake = FakeService(model=MODEL)
    monkeypatch.setattr(service, "connect", lambda *_: fake)

    async def forward_backward_custom_async(self: FakeTrainingClient, data: Any, loss_fn: Any) -> Any:
        loss_fn(data, [-torch.ones(len(datum.loss_fn_inputs["weights"].tolist())) for datum in data])
        return await self.forward_backward_async(data, "cross_entropy")

    def interrupt(call: str) -> None:
        if call.startswith("optim_step"):
            asyncio.get_running_loop().call_soon(running.cancel)

    async def interrupted() -> None:
        nonlocal running
        running = asyncio.ensure_future(train_dpo.train(config(tmp_path, num_epochs=3)))
        await running

    running: Any = None
    fake.watch = interrupt
    monkeypatch.setattr(
        FakeTrainingClient, "forward_backward_custom_async", forward_backward_custom_async, raising=False
    )
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(interrupted())
    (row,) = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert row["margin"] != 0
    (record,) = [
        json.loads(line) for line in (tmp_path / "run" / "checkpoints.jsonl").read_text().splitlines()
    ]
    assert (record["name"], record["epoch"]) == ("interrupted-000001", 1)


def test_an_example_is_shown_with_each_token_in_the_colour_of_its_own_weight(caplog):
    """W18."""
    caplog.set_level(logging.INFO)
    datum, tokenizer = PAIRS()[0].get_batch(0)[0], get_tokenizer(MODEL)
    train_dpo.print_example(datum, tokenizer, "chosen")
    assert "chosen example" in caplog.text
    assert display.colorize_example(datum, tokenizer) in caplog.messages[-1]


def test_the_loss_of_the_spec_is_here():
    assert callable(train_dpo.compute_dpo_loss)
