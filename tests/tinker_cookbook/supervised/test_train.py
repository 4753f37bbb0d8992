"""The loop of supervised fine-tuning, against a service that remembers what it was asked."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.tinker_cookbook.fake_service import FakeService
from tests.tinker_cookbook.supervised.numbers import TINY, Sums, sums
from tinker_cookbook import service
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.supervised import train
from tinker_cookbook.tokenizer_utils import get_tokenizer


@pytest.fixture
def fake(monkeypatch) -> FakeService:
    tokenizer = get_tokenizer(TINY)

    def first_question(data: Any) -> str:
        text = tokenizer.decode(data[0].model_input.to_ints())
        return text.split("What is ")[1].split(" +")[0]

    fake = FakeService(model=TINY, describe=first_question)
    monkeypatch.setattr(service, "connect", lambda *_: fake)
    return fake


def config(tmp_path: Path, **changes: Any) -> train.Config:
    fields: dict[str, Any] = {
        "log_path": str(tmp_path / "run"),
        "model_name": TINY,
        "recipe_name": "test",
        "dataset_builder": sums(),
        "num_epochs": 2,
        "save_every": 3,
        **changes,
    }
    return train.Config(**fields)


def rows(config: train.Config, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(config.log_path) / name).read_text().splitlines()]


def updates(fake: FakeService) -> tuple[str, ...]:
    return fake.stored["tinker://fake/weights/final"]


def test_epochs_have_all_batches_in_orders_of_their_own(fake, tmp_path):
    asyncio.run(train.main(config(tmp_path)))
    made = updates(fake)
    assert len(made) == 10
    assert made[:5] != made[5:]
    dataset = sums()()[0]
    for epoch in (0, 1):
        dataset.set_epoch(epoch)
        first = [fake.describe(dataset.get_batch(i)) for i in range(5)]
        assert list(made[5 * epoch : 5 * epoch + 5]) == first


class Stop(Exception):
    """The script dies."""


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("dies_at", [1, 3, 4, 7, 9])
def test_every_batch_is_applied_once_wherever_the_script_dies(fake, tmp_path, monkeypatch, dies_at, ahead):
    asyncio.run(train.main(config(tmp_path / "alone", submit_ahead=ahead)))
    undisturbed = updates(fake)

    read = Sums.get_batch
    count = iter(range(100))

    def get_batch(self: Sums, index: int) -> Any:
        if next(count) == dies_at:
            raise Stop
        return read(self, index)

    run_config = config(tmp_path, submit_ahead=ahead)
    monkeypatch.setattr(Sums, "get_batch", get_batch)
    with pytest.raises(Stop):
        asyncio.run(train.main(run_config))
    monkeypatch.setattr(Sums, "get_batch", read)
    asyncio.run(train.main(run_config))
    assert updates(fake) == undisturbed
    steps = {row["step"]: row for row in rows(run_config) if "train_mean_nll" in row}
    assert sorted(steps) == list(range(10))


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_so_many_batches_are_under_way_and_rows_come_in_order(fake, tmp_path, ahead):
    asyncio.run(train.main(config(tmp_path, submit_ahead=ahead, save_every=0)))
    assert [row["step"] for row in rows(config(tmp_path))] == list(range(10))
    submitted = [call for call in fake.calls if call.startswith(("forward_backward", "optim_step"))]
    assert [call.split()[0] for call in submitted] == ["forward_backward", "optim_step"] * 10


def test_a_run_that_max_steps_ended_can_be_extended(fake, tmp_path):
    asyncio.run(train.main(config(tmp_path / "alone", lr_schedule="constant")))
    undisturbed = updates(fake)
    asyncio.run(train.main(config(tmp_path, max_steps=4, lr_schedule="constant")))
    assert updates(fake) == undisturbed[:4]
    asyncio.run(train.main(config(tmp_path, lr_schedule="constant")))
    assert updates(fake) == undisturbed


def test_the_rows_say_what_is_to_be_known(fake, tmp_path):
    run_config = config(tmp_path, dataset_builder=sums(test_batches=1), eval_every=5, warmup_steps=2)
    asyncio.run(train.main(run_config))
    row = rows(run_config)[2]
    assert row["num_sequences"] == 2
    assert row["num_loss_tokens"] > 2  # tokens, not the sum of weights
    assert row["train_mean_nll"] == pytest.approx(1.0)
    assert row["progress"] == pytest.approx(0.3)
    assert row["time/total"] > 0
    assert [row["learning_rate"] for row in rows(run_config)[:2]] == pytest.approx([5e-5, 1e-4])
    assert [row["step"] for row in rows(run_config) if "test/nll" in row] == [0, 5, 10]
    assert "forward after 10 updates" in fake.calls


def test_other_data_is_not_resumed_on(fake, tmp_path):
    asyncio.run(train.main(config(tmp_path, max_steps=3)))
    with pytest.raises(ConfigurationError, match=r"had 5 batches .* has 6 now"):
        asyncio.run(train.main(config(tmp_path, dataset_builder=sums(batches=6))))


@pytest.mark.parametrize(("field", "value"), [("submit_ahead", -1), ("num_epochs", 0)])
def test_a_field_that_cannot_work_is_refused(tmp_path, field, value):
    with pytest.raises(ConfigurationError, match=field):
        config(tmp_path, **{field: value})


def test_data_without_a_batch_is_refused(fake, tmp_path):
    with pytest.raises(ConfigurationError, match="no whole batch"):
        asyncio.run(train.main(config(tmp_path, dataset_builder=sums(batches=0))))
