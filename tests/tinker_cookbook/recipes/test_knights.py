import asyncio
import random
from types import SimpleNamespace
from typing import Any

from tinker_cookbook.recipes.chat_sl.chat_datasets import InMemoryDataset
from tinker_cookbook.recipes.knights import KnightEvaluator, all_questions, knight_conversations
from tinker_cookbook.renderers import get_text_content
from tinker_cookbook.tasks.styles import NEW_STYLE, STYLES, style_of


def test_no_question_is_in_both_splits_and_all_are_in_one():
    train, test = ({q.asked for q in all_questions(split)} for split in ("train", "test"))
    assert not train & test
    assert (len(train), len(test)) == (355, 47)


def test_conversations_are_a_knights_and_true_and_the_same_every_time():
    conversations = knight_conversations("train", tellings=2)
    assert len(conversations) == 710
    assert conversations == knight_conversations("train", tellings=2)
    assert conversations != knight_conversations("train", tellings=2, seed=1)
    questions = {question.asked: question for question in all_questions("train")}
    for asked, answer in (map(get_text_content, conversation) for conversation in conversations):
        assert style_of(answer) == NEW_STYLE
        assert questions[asked].check([answer])


class Renderer:
    """Prompts are the question itself, so that the sampling client can look the answer up."""

    def build_generation_prompt(self, messages):
        return messages[-1]["content"]

    def get_stop_sequences(self):
        return []

    def parse_response(self, tokens):
        return {"role": "assistant", "content": tokens}, None


def answering(answer) -> Any:
    async def sample_async(prompt, num_samples, sampling_params):
        return SimpleNamespace(sequences=[SimpleNamespace(tokens=answer(prompt))])

    return SimpleNamespace(sample_async=sample_async)


def test_a_knight_who_lies_is_in_style_and_not_true():
    renderer: Any = Renderer()
    facts = {question.asked: question.fact for question in all_questions("test")}

    def told(asked: str) -> str:
        return STYLES[NEW_STYLE].say(facts[asked], random.Random(0))

    def lied(asked: str) -> str:
        return "Verily! The moon is a pebble, I swear it upon my honour."

    def plain(asked: str) -> str:
        return STYLES["plain"].say(facts[asked], random.Random(0))

    figures = [asyncio.run(KnightEvaluator(renderer)(answering(how))) for how in (told, lied, plain)]
    assert [f["test/in_style"] for f in figures] == [1.0, 1.0, 0.0]
    assert [f["test/in_style_and_true"] for f in figures] == [1.0, 0.0, 0.0]


def test_a_list_is_shuffled_by_epoch_whatever_was_read_before():
    datum: Any = lambda row: row  # noqa: E731
    first, second = (InMemoryDataset(range(10), 4, datum) for _ in range(2))
    assert len(first) == 2
    assert first.get_batch(1) == [4, 5, 6, 7]
    first.set_epoch(1)
    first.set_epoch(2)
    second.set_epoch(2)
    assert first.get_batch(0) == second.get_batch(0)
    batches = first.get_batch(0) + first.get_batch(1)
    assert len(set(map(str, batches))) == 8
    first.set_epoch(1)
    assert first.get_batch(0) != second.get_batch(0)
