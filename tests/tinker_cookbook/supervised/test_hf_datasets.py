"""Datasets over objects of the `datasets` package; a stand-in where it is not installed, the real one where it is."""

import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import tinker

from tinker_cookbook.exceptions import ConfigurationError, DataValidationError
from tinker_cookbook.supervised.data import (
    StreamingSupervisedDatasetFromHFDataset,
    SupervisedDatasetFromHFDataset,
)


class FakeDataset:
    """The part of `datasets.Dataset` that is used."""

    def __init__(self, rows: Sequence[dict]):
        self._rows = list(rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[dict]:
        return iter(self._rows)

    def select(self, indices: Sequence[int]) -> "FakeDataset":
        return FakeDataset([self._rows[i] for i in indices])

    def shuffle(self, seed: int) -> "FakeDataset":
        return FakeDataset(random.Random(seed).sample(self._rows, len(self._rows)))


class FakeStream:
    """The part of `datasets.IterableDataset` that is used."""

    def __init__(self, rows: Sequence[dict], seed: int = 0, size: int = 1):
        self._rows, self._seed, self._size, self._epoch = list(rows), seed, size, 0

    def shuffle(self, seed: int, buffer_size: int) -> "FakeStream":
        return FakeStream(self._rows, seed)

    def batch(self, batch_size: int, drop_last_batch: bool) -> "FakeStream":
        assert drop_last_batch
        return FakeStream(self._rows, self._seed, batch_size)

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __iter__(self) -> Iterator[dict]:
        rows = random.Random(self._seed + self._epoch).sample(self._rows, len(self._rows))
        for start in range(0, len(rows) - self._size + 1, self._size):
            yield {"n": [row["n"] for row in rows[start : start + self._size]]}


def real(kind: str) -> Any:
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_list(ROWS)
    return dataset if kind == "Dataset" else dataset.to_iterable_dataset()


ROWS = [{"n": n} for n in range(10)]
WHOLE = [pytest.param(lambda: FakeDataset(ROWS), id="fake"), pytest.param(lambda: real("Dataset"), id="real")]
STREAM = [pytest.param(lambda: FakeStream(ROWS), id="fake"), pytest.param(lambda: real("Stream"), id="real")]


def datum(row: dict) -> tinker.Datum:
    return tinker.Datum(model_input=tinker.ModelInput.from_ints([row["n"]]), loss_fn_inputs={})


def numbers(batch: list[tinker.Datum]) -> list[int]:
    return [datum.model_input.to_ints()[0] for datum in batch]


@pytest.mark.parametrize("make", WHOLE)
def test_the_original_order_until_an_epoch_shuffles_it(make):
    dataset = SupervisedDatasetFromHFDataset(make(), 4, map_fn=datum)
    assert len(dataset) == 2
    assert numbers(dataset.get_batch(0) + dataset.get_batch(1)) == list(range(8))
    dataset.set_epoch(3)
    first = numbers(dataset.get_batch(0))
    dataset.set_epoch(5)
    assert numbers(dataset.get_batch(0)) != first
    dataset.set_epoch(3)
    assert numbers(dataset.get_batch(0)) == first
    with pytest.raises(IndexError):
        dataset.get_batch(2)


@pytest.mark.parametrize("make", WHOLE)
def test_flatmap_makes_any_number_of_datums(make):
    dataset = SupervisedDatasetFromHFDataset(make(), 4, flatmap_fn=lambda row: [datum(row)] * (row["n"] % 3))
    assert numbers(dataset.get_batch(0)) == [1, 2, 2]


@pytest.mark.parametrize("functions", [{}, {"map_fn": datum, "flatmap_fn": lambda row: [datum(row)]}])
def test_exactly_one_function(functions):
    with pytest.raises(ConfigurationError, match="either map_fn or flatmap_fn"):
        SupervisedDatasetFromHFDataset(FakeDataset(ROWS), 4, **functions)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("make", STREAM)
def test_a_stream_goes_forward_only(make):
    dataset = StreamingSupervisedDatasetFromHFDataset(make(), 3, length=10, map_fn=datum)
    assert len(dataset) == 3
    dataset.set_epoch(1)
    batches = [numbers(dataset.get_batch(i)) for i in range(3)]
    assert len({n for batch in batches for n in batch}) == 9
    with pytest.raises(DataValidationError, match="cannot go back"):
        dataset.get_batch(1)
    with pytest.raises(DataValidationError, match="ended after 3 batches"):
        dataset.get_batch(3)


@pytest.mark.parametrize("make", STREAM)
def test_a_resumed_stream_skips_to_where_it_was(make):
    whole = StreamingSupervisedDatasetFromHFDataset(make(), 3, length=10, map_fn=datum)
    whole.set_epoch(2)
    expected = [numbers(whole.get_batch(i)) for i in range(3)]
    resumed = StreamingSupervisedDatasetFromHFDataset(make(), 3, length=10, map_fn=datum)
    resumed.set_epoch(0)
    resumed.get_batch(0)
    resumed.set_epoch(2)
    assert numbers(resumed.get_batch(2)) == expected[2]


# --- by name, and as files that `datasets` wrote ----------------------------------------------------------


def test_a_saved_dataset_is_read(tmp_path):
    datasets = pytest.importorskip("datasets")
    from tinker_cookbook.supervised.rows import open_rows

    rows = [{"prompt": "a", "completion": str(n)} for n in range(3)]
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)}).save_to_disk(tmp_path / "more")
    assert open_rows(str(tmp_path / "one"))[2] == rows[2]
    assert open_rows(str(tmp_path / "more"))[2] == rows[2]
    with pytest.raises(ConfigurationError, match="no split 'test'; it has train"):
        open_rows(str(tmp_path / "more"), split="test")


def test_a_split_can_be_held_out(tmp_path):
    datasets = pytest.importorskip("datasets")
    from tests.tinker_cookbook.supervised.numbers import TINY
    from tinker_cookbook.supervised.data import FromConversationFileBuilder
    from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig

    splits = {
        name: datasets.Dataset.from_list([{"prompt": f"{name} {i}", "completion": "ok"} for i in range(size)])
        for name, size in (("train", 8), ("test", 3))
    }
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "saved")
    common = ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer=TINY, renderer_name="chatml", max_length=None, batch_size=4
    )
    builder = FromConversationFileBuilder(
        common_config=common, file_path=str(tmp_path / "saved"), test_split="test"
    )
    train, test = builder()
    assert len(train) == 2
    assert test is not None
    assert [builder.tokenizer.decode(d.model_input.to_ints()).count("test") for d in test.get_batch(0)] == [
        1
    ] * 3


def test_a_name_of_the_hub_is_loaded_by_datasets(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    from tinker_cookbook.supervised.rows import open_rows

    asked: list[Any] = []

    def load_dataset(*arguments: Any, **options: Any) -> Any:
        asked.append((arguments, options))
        return datasets.Dataset.from_list([{"text": "x"}])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    rows = open_rows("some/set", subset="en", split="train[:5]")
    assert rows.where(0) == "some/set (train[:5]), row 0"
    assert asked == [(("some/set", "en"), {"split": "train[:5]"})]


def test_without_datasets_a_name_says_what_to_install(monkeypatch):
    from tinker_cookbook.supervised.rows import open_rows

    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigurationError, match=r"no file or folder some/set.*pip install datasets"):
        open_rows("some/set")
