"""From files to batches: what is in them, in which order, and in how much memory."""

import json
import logging
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import tinker

from tests.tinker_cookbook.renderers.small_tokenizers import small_tokenizer
from tests.tinker_cookbook.supervised.numbers import TINY
from tinker_cookbook import renderers
from tinker_cookbook.exceptions import ConfigurationError, DataValidationError, RendererError
from tinker_cookbook.renderers import TrainOnWhat, get_renderer
from tinker_cookbook.supervised.data import (
    ExampleRenderer,
    FromConversationFileBuilder,
    conversation_to_datum,
)
from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig
from tinker_cookbook.tokenizer_utils import get_tokenizer


def chat(*contents: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)]


def builder(path: Path, *, renderer: str = "chatml", **options: Any) -> FromConversationFileBuilder:
    common = {"max_length": None, "batch_size": 4, "train_on_what": None}
    common |= {key: options.pop(key) for key in list(options) if key in common}
    return FromConversationFileBuilder(
        common_config=ChatDatasetBuilderCommonConfig(
            model_name_for_tokenizer=TINY, renderer_name=renderer, **common
        ),
        file_path=str(path),
        **options,
    )


def text_of(datum: tinker.Datum) -> str:
    tokens = [*datum.model_input.to_ints(), int(datum.loss_fn_inputs["target_tokens"].data[-1])]
    return get_tokenizer(TINY).decode(tokens)


def learned(datum: tinker.Datum) -> str:
    inputs = datum.loss_fn_inputs
    pairs = zip(inputs["target_tokens"].data, inputs["weights"].data, strict=True)
    return get_tokenizer(TINY).decode([int(token) for token, weight in pairs if weight > 0])


def questions(dataset: Any, batches: Any = None) -> list[str]:
    indices = range(len(dataset)) if batches is None else batches
    found = [text_of(datum) for index in indices for datum in dataset.get_batch(index)]
    return [text.split("user\n")[1].split("<")[0] for text in found]


@pytest.fixture
def sums(tmp_path) -> Path:
    path = tmp_path / "sums.jsonl"
    rows = [{"messages": chat(f"What is {i} + 1?", f"{i + 1}.")} for i in range(23)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# --- one conversation -------------------------------------------------------------------------------------


def test_all_assistant_messages_are_learned_and_weigh_one_together():
    renderer = get_renderer("chatml", get_tokenizer(TINY))
    datum = conversation_to_datum(chat("a", "one", "b", "two"), renderer, None)  # pyright: ignore[reportArgumentType]
    assert learned(datum) == "one<|im_end|>two<|im_end|>"
    assert sum(datum.loss_fn_inputs["weights"].data) == pytest.approx(1.0)


def test_reduction_none_keeps_the_weights():
    renderer = get_renderer("chatml", get_tokenizer(TINY))
    conversation: Any = chat("a", "one")
    datum = conversation_to_datum(conversation, renderer, None, TrainOnWhat.ALL_TOKENS, reduction="none")
    assert set(datum.loss_fn_inputs["weights"].data) == {1.0}


def test_a_renderer_that_rewrites_the_past_gets_an_example_for_each_answer(caplog):
    tokenizer = small_tokenizer(["<|im_start|>", "<|im_end|>"], eos="<|im_end|>")
    renderer = get_renderer("qwen3", tokenizer)
    assert not renderer.has_extension_property
    conversation: Any = chat("a", "one", "b", "two")
    all_answers = ExampleRenderer(renderer, None, TrainOnWhat.ALL_ASSISTANT_MESSAGES)(conversation)
    last_answer = ExampleRenderer(renderer, None, TrainOnWhat.LAST_ASSISTANT_MESSAGE)(conversation)
    assert len(all_answers) == 2
    assert len(last_answer) == 1
    assert not caplog.records


# --- files ------------------------------------------------------------------------------------------------


def test_before_any_epoch_the_order_is_fixed_by_the_seed(sums):
    first, again = builder(sums)()[0], builder(sums)()[0]
    other = builder(sums, shuffle_seed=1)()[0]
    assert len(first) == 5
    assert questions(first) == questions(again) != questions(other)


def test_an_epoch_depends_on_its_seed_alone_whatever_was_read_before(sums):
    undisturbed = builder(sums)()[0]
    undisturbed.set_epoch(seed=3)
    expected = questions(undisturbed)
    busy = builder(sums)()[0]
    for seed in (0, 7):
        busy.set_epoch(seed=seed)
        assert questions(busy) != expected
    busy.set_epoch(seed=3)
    assert questions(busy, [4, 2]) == expected[16:20] + expected[8:12]


def test_an_epoch_has_every_example_once(sums):
    dataset = builder(sums, batch_size=1)()[0]
    dataset.set_epoch(seed=5)
    assert sorted(questions(dataset)) == sorted(f"What is {i} + 1?" for i in range(23))


def test_held_out_examples_are_never_trained_on_and_stay_the_same(sums):
    train, test = builder(sums, test_size=6, batch_size=1)()
    assert test is not None
    assert len(test) == 1
    held_out = set(questions(test))
    train.set_epoch(seed=2)
    assert len(held_out) == 6
    assert not held_out & set(questions(train))
    assert len(questions(train)) == 17
    assert held_out == set(questions(builder(sums, test_size=6)()[1]))


def test_held_out_examples_may_have_a_file_of_their_own(sums, tmp_path):
    (tmp_path / "test.csv").write_text("prompt,completion\nWho?,Me.\n")
    train, test = builder(sums, test_path=str(tmp_path / "test.csv"))()
    assert questions(test) == ["Who?"]
    assert len(train) == 5
    with pytest.raises(ConfigurationError, match="give one way to hold out"):
        builder(sums, test_path="x.csv", test_size=1)


def test_a_file_no_larger_than_the_test_set_holds_nothing_out(sums, caplog):
    train, test = builder(sums, test_size=23)()
    assert test is None
    assert len(train) == 5
    assert "nothing is held out" in caplog.text


def test_plain_text_is_learned_whole_with_its_end(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "Once <|im_end|> upon"}\n')
    (datum,) = builder(tmp_path / "a.jsonl", batch_size=1)()[0].get_batch(0)
    tokenizer = get_tokenizer(TINY)
    assert text_of(datum) == "Once <|im_end|> upon" + tokenizer.eos_token
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") not in datum.model_input.to_ints(), "it is text"
    assert all(weight > 0 for weight in datum.loss_fn_inputs["weights"].data)


# --- what is cut is counted -------------------------------------------------------------------------------


def test_cuts_are_counted_and_logged(tmp_path, caplog):
    path = tmp_path / "a.jsonl"
    rows = [{"messages": chat("hi", "yes " * length)} for length in (1, 40, 40, 40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    whole = builder(path)()[0]
    lengths = [datum.model_input.length + 1 for datum in whole.get_batch(0)]
    assert whole.cuts.cut_examples == 0
    cut = builder(path, max_length=20)()[0]
    assert max(datum.model_input.length + 1 for datum in cut.get_batch(0)) == 20
    assert (cut.cuts.examples, cut.cuts.cut_examples) == (4, 3)
    assert cut.cuts.cut_tokens == sum(length - 20 for length in lengths if length > 20)
    assert cut.cuts.untrained_examples == 0
    cut.set_epoch(seed=1)
    assert f"has cut 3 of 4 examples so far, by {cut.cuts.cut_tokens} tokens" in caplog.text
    assert cut.metrics()["data/cut_tokens"] == cut.cuts.cut_tokens


def test_an_example_cut_before_its_answer_is_counted_as_such(tmp_path, caplog):
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": chat("why " * 50, "so")}) + "\n")
    dataset = builder(tmp_path / "a.jsonl", max_length=10, batch_size=1)()[0]
    dataset.get_batch(0)
    assert dataset.cuts.untrained_examples == 1
    assert "1 of them have nothing left to learn" in caplog.text


# --- memory, processes ------------------------------------------------------------------------------------


def test_a_large_file_is_not_held_in_memory(tmp_path):
    path = tmp_path / "large.jsonl"
    with path.open("w") as file:
        for i in range(20_000):
            file.write(
                json.dumps({"messages": chat(f"What is {i} + 1?" + " please" * 50, f"{i + 1}.")}) + "\n"
            )
    build = builder(path, batch_size=16)
    assert build.renderer is not None  # what the tokenizer takes is not the data's
    tracemalloc.start()
    try:
        dataset = build()[0]
        dataset.set_epoch(seed=1)
        for index in range(20):
            dataset.get_batch(index)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(dataset) == 1250
    assert path.stat().st_size > 8_000_000
    assert peak < 4_000_000, peak  # of which what other threads do meanwhile is a part


def test_a_dataset_can_be_pickled_and_goes_on_alike(sums):
    dataset = builder(sums)()[0]
    dataset.set_epoch(seed=1)
    copy = pickle.loads(pickle.dumps(dataset))
    assert questions(copy) == questions(dataset)


# --- bad input --------------------------------------------------------------------------------------------


def test_fewer_examples_than_a_batch(sums):
    with pytest.raises(DataValidationError, match="23 examples to train on, fewer than batch_size=24"):
        builder(sums, batch_size=24)()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"max_length": 1}, "max_length=1"),
        ({"test_size": -1}, "negative"),
    ],
)
def test_sizes_that_make_no_sense(sums, options, words):
    with pytest.raises(ConfigurationError, match=words):
        builder(sums, **options)


def test_an_unknown_renderer(sums):
    with pytest.raises(RendererError, match="no renderer is named 'nix'"):
        builder(sums, renderer="nix")()


def refusing_thirteen(tokenizer: Any, image_processor: Any) -> renderers.Renderer:
    """Refuses a message, as some families do."""
    renderer = get_renderer("chatml", tokenizer)
    render = renderer.render_message

    def refuse(message: Any, ctx: Any) -> Any:
        if "13" in message["content"]:
            raise RendererError("thirteen is not written")
        return render(message, ctx)

    renderer.render_message = refuse
    return renderer


@pytest.fixture
def choosy():
    renderers.register_renderer("choosy", refusing_thirteen)
    yield "choosy"
    renderers.unregister_renderer("choosy")


def test_what_the_renderer_refuses_is_named_by_file_and_line(sums, choosy):
    dataset = builder(sums, renderer=choosy, batch_size=23)()[0]
    with pytest.raises(DataValidationError, match=r"sums\.jsonl, line 1[34]: thirteen is not written"):
        dataset.get_batch(0)


def test_or_is_skipped_and_counted(sums, choosy, caplog):
    dataset = builder(sums, renderer=choosy, batch_size=23, on_bad_row="skip")()[0]
    for _ in range(2):
        assert len(dataset.get_batch(0)) == 21
    assert dataset.refused == 2
    assert sum("thirteen" in record.message for record in caplog.records) == 2


def test_what_is_trained_on_is_logged(sums, caplog):
    with caplog.at_level(logging.INFO):
        builder(sums, test_size=2)()
    assert "21 examples to train on, 2 held out" in caplog.text
    assert "1 examples, others in each epoch, are left over" in caplog.text
