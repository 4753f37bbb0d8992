"""Mixtures of data sets."""

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest

from tests.tinker_cookbook.supervised.numbers import TINY
from tinker_cookbook.exceptions import ConfigurationError, DataFormatError
from tinker_cookbook.supervised.data import HFDatasetSource, InterleavedChatDatasetBuilder
from tinker_cookbook.supervised.interleaved import StoppingStrategy, interleave
from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig


def mix(sizes: list[int], weights: list[float], strategy: StoppingStrategy, seed: int = 0) -> list[int]:
    return interleave(sizes, weights, strategy, np.random.default_rng(seed)).tolist()


def test_first_exhausted_ends_with_the_first_source_that_is_used_up():
    order = mix([5, 1000], [0.5, 0.5], "first_exhausted")
    assert sorted(n for n in order if n < 5) == [0, 1, 2, 3, 4]
    assert order[-1] < 5
    assert len(set(order)) == len(order) < 40


def test_all_exhausted_begins_small_sources_again():
    counts = Counter(mix([3, 200], [1.0, 1.0], "all_exhausted"))
    assert set(range(203)) <= set(counts)
    assert counts[3] == 1
    assert min(counts[n] for n in range(3)) > 20
    assert max(counts[n] for n in range(3)) - min(counts[n] for n in range(3)) <= 1


def test_without_replacement_every_row_comes_once():
    order = mix([30, 4, 11], [1.0, 9.0, 0.5], "all_exhausted_without_replacement")
    assert sorted(order) == list(range(45))


def test_weights_are_shares():
    order = mix([4000, 4000], [3.0, 1.0], "first_exhausted")
    share = sum(n < 4000 for n in order) / len(order)
    assert share == pytest.approx(0.75, abs=0.03)


def test_a_source_of_weight_zero_is_left_out():
    assert max(mix([10, 10], [1.0, 0.0], "all_exhausted")) < 10


def test_the_same_seed_is_the_same_mixture():
    assert mix([50, 70], [1, 1], "all_exhausted") == mix([50, 70], [1, 1], "all_exhausted")
    assert mix([50, 70], [1, 1], "all_exhausted") != mix([50, 70], [1, 1], "all_exhausted", seed=1)


# --- the builder ------------------------------------------------------------------------------------------


@pytest.fixture
def build(tmp_path):
    """Two files, of 6 and 18 rows; the column of the second has another name."""
    for name, column, size in (("a", "messages", 6), ("b", "chat", 18)):
        rows = [
            {column: [{"role": "user", "content": f"{name}{i}"}, {"role": "assistant", "content": "ok"}]}
            for i in range(size)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def build(weights: tuple[float | None, float | None] = (None, None), **options: Any) -> Any:
        sources = [
            HFDatasetSource(path=str(tmp_path / "a.jsonl"), weight=weights[0]),
            HFDatasetSource(path=str(tmp_path / "b.jsonl"), weight=weights[1], message_field="chat"),
        ]
        common = ChatDatasetBuilderCommonConfig(
            model_name_for_tokenizer=TINY, renderer_name="chatml", max_length=None, batch_size=1
        )
        return InterleavedChatDatasetBuilder(common_config=common, **{"sources": sources, **options})

    return build


def asked(builder: Any, dataset: Any) -> list[str]:
    texts = [
        builder.tokenizer.decode(datum.model_input.to_ints())
        for index in range(len(dataset))
        for datum in dataset.get_batch(index)
    ]
    return [text.split("user\n")[1].split("<")[0] for text in texts]


def test_other_message_columns_are_read_and_sizes_are_the_weights(build):
    builder = build(stopping_strategy="all_exhausted_without_replacement")
    train, test = builder()
    assert test is None
    assert sorted(asked(builder, train)) == sorted([f"a{i}" for i in range(6)] + [f"b{i}" for i in range(18)])


def test_a_held_out_row_is_never_trained_on_though_it_comes_again(build):
    builder = build((1.0, 1.0), test_size=10)
    train, test = builder()
    held_out, trained = asked(builder, test), asked(builder, train)
    assert len(set(held_out)) == len(held_out) <= 10
    assert not set(held_out) & set(trained)
    assert set(held_out) | set(trained) >= {f"b{i}" for i in range(18)}


@pytest.mark.parametrize(
    ("weights", "words"),
    [((1.0, None), "every source a weight, or none"), ((0.0, 0.0), "above 0"), ((2.0, -1.0), "negative")],
)
def test_weights_that_make_no_sense(build, weights, words):
    with pytest.raises(ConfigurationError, match=words):
        build(weights)


def test_no_sources(build):
    with pytest.raises(ConfigurationError, match="sources is empty"):
        build(sources=[])


def test_a_missing_column_is_named(build, tmp_path):
    with pytest.raises(DataFormatError, match="has no column turns; it has messages"):
        build(sources=[HFDatasetSource(path=str(tmp_path / "a.jsonl"), message_field="turns")])()
