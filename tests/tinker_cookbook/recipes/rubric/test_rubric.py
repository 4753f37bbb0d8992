"""Grading by a rubric: what the grader is shown, and what comes of what it says."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import tinker_cookbook
from tests.tinker_cookbook.recipes.runs import metrics_of
from tinker_cookbook.completers import MessageCompleter
from tinker_cookbook.exceptions import ConfigurationError, DataError
from tinker_cookbook.recipes.rubric import generate_data
from tinker_cookbook.recipes.rubric.data import (
    Rubric,
    RubricBasedDatapoint,
    read_datapoints,
    write_datapoints,
)
from tinker_cookbook.recipes.rubric.env import RubricGradedEnv
from tinker_cookbook.recipes.rubric.train import CLIConfig, build_config, cli_main
from tinker_cookbook.renderers import Message, get_renderer
from tinker_cookbook.tokenizer_utils import get_tokenizer

TINY = "tinker-engine/tiny-chat"
QUESTION = Message(role="user", content="What is 2 + 2?")


@pytest.mark.parametrize(
    ("said", "score"),
    [
        ("<score>0.5</score>", 0.5),
        ("well <score> 1 </score>", 1.0),
        ("<score>7</score>", 1.0),
        ("<score>-3</score>", 0.0),
        ("<score>0.2</score> no: <score>0.8</score>", 0.8),
        ("<score>good</score>", None),
        ("<score>nan</score>", None),
        ("<score>inf</score>", None),
        ("0.5", None),
        ("", None),
    ],
)
def test_a_score_is_between_0_and_1_or_none(said, score):
    assert Rubric("kind").score(said) == score


def test_other_scales_and_words():
    assert Rubric("kind", lowest=1, highest=5).score("<score>2</score>") == 0.25
    assert Rubric("kind", lowest=1, highest=5).score("<score>9</score>") == 1.0
    letters = Rubric("kind", extraction_regex=r"^([AB])$", grades={"A": 1.0, "B": 0.0})
    assert [letters.score(said) for said in ("A", "B", "C", "A B")] == [1.0, 0.0, None, None]
    mistakes: list[dict[str, Any]] = [{"extraction_regex": "("}, {"extraction_regex": "x"}, {"lowest": 1.0}]
    for wrong in mistakes:
        with pytest.raises(ConfigurationError):
            Rubric("kind", **wrong)


def test_the_grader_is_shown_text():
    reply = Message(
        role="assistant",
        content=[
            {"type": "thinking", "thinking": "secret"},
            {"type": "text", "text": "It is 4. {rubric} {0}"},
        ],
    )
    (message,) = Rubric("Is it 4?").prompt([QUESTION, reply])
    shown = message["content"]
    assert isinstance(shown, str)
    assert "user: What is 2 + 2?\n\nassistant: It is 4. {rubric} {0}" in shown
    assert shown.count("Is it 4?") == 1
    assert "secret" not in shown
    assert "[{" not in shown


def test_datapoints_survive_a_file(tmp_path):
    structured = Message(role="user", content=[{"type": "text", "text": "Grüße"}])
    items = [Rubric("a"), Rubric("b", extraction_regex="(x)", grades={"x": 1.0}, lowest=-1)]
    written = [RubricBasedDatapoint([structured, QUESTION], items), RubricBasedDatapoint([QUESTION], items)]
    write_datapoints(tmp_path / "new" / "data.jsonl", written)
    assert read_datapoints(str(tmp_path / "new" / "data.jsonl")) == written


@pytest.mark.parametrize(
    "line",
    [
        '{"convo": [], "rubric_items": [{"rubric_str": "a"}]}',
        '{"convo": [{"role": "user", "content": "x"}], "rubric_items": []}',
        '{"convo": [{"role": "user", "content": "x"}], "rubric_items": [{"rubrik": "a"}]}',
        '{"convo": [{"role": "user", "content": "x"}], "rubric_items": ["a"]}',
    ],
)
def test_a_bad_line_is_named(tmp_path, line):
    (tmp_path / "data.jsonl").write_text(line + "\n")
    with pytest.raises(DataError, match=r"data\.jsonl.*1"):
        read_datapoints(str(tmp_path / "data.jsonl"))


# --- the environment --------------------------------------------------------------------------------------


class Grader(MessageCompleter):
    """Says what it was told to, once all of its questions have come: they must not wait for each other."""

    def __init__(self, *says: str, hangs: bool = False):
        self.says = list(says)
        self.waiting = len(says)
        self.asked: list[str] = []
        self.all_asked = asyncio.Event()
        self.hangs = hangs

    async def __call__(self, messages: list[Message]) -> Message:
        number = len(self.asked)
        self.asked.append(str(messages[0]["content"]))
        if len(self.asked) == self.waiting and not self.hangs:
            self.all_asked.set()
        await self.all_asked.wait()
        return Message(role="assistant", content=self.says[number])


@pytest.fixture(scope="module")
def renderer():
    return get_renderer("chatml", get_tokenizer(TINY), model_name=TINY)


def graded(renderer, grader, items: int, *, ended: bool = True, timeout: float = 30.0):
    datapoint = RubricBasedDatapoint([QUESTION], [Rubric(f"item {i}") for i in range(items)])
    env = RubricGradedEnv(datapoint, renderer, grader, grader_timeout=timeout)
    tokens = renderer.tokenizer.encode("It is 4", add_special_tokens=False)
    return asyncio.run(env.step(tokens + renderer.get_stop_sequences()[:1] if ended else tokens))


def test_the_reward_is_the_mean_of_the_items(renderer):
    grader = Grader("<score>1</score>", "<score>0.5</score>", "<score>7</score>")
    result = graded(renderer, grader, 3)
    assert result.reward == pytest.approx(2.5 / 3)
    assert result.metrics["grader_failed"] == 0.0
    assert sorted(text.count("It is 4") for text in grader.asked) == [1, 1, 1]


def test_a_grade_that_cannot_be_read_counts_as_nothing_and_is_counted(renderer):
    result = graded(renderer, Grader("<score>1</score>", "I like it!"), 2)
    assert result.reward == pytest.approx(0.5)
    assert result.metrics["grader_failed"] == 0.5


def test_a_reply_that_was_cut_off_loses_a_little(renderer):
    result = graded(renderer, Grader("<score>1</score>"), 1, ended=False)
    assert (result.reward, result.metrics["format"]) == (pytest.approx(0.9), 0.0)


def test_a_grader_that_never_answers(renderer, caplog):
    result = graded(renderer, Grader("", hangs=True), 1, timeout=0.01)
    assert (result.reward, result.metrics["grader_failed"]) == (0.0, 1.0)
    assert "no answer in 0.01 s" in caplog.text


# --- data and the command ---------------------------------------------------------------------------------


def test_generated_data_goes_where_it_is_told(tmp_path):
    for data in ("brief", "addition"):
        config = generate_data.Config(data=data, folder=str(tmp_path / data), train_size=20, test_size=10)
        folder = generate_data.generate(config)
        first = (folder / "train.jsonl").read_bytes()
        assert generate_data.generate(config) == folder == tmp_path / data
        assert (folder / "train.jsonl").read_bytes() == first
        train, test = (read_datapoints(str(folder / f"{split}.jsonl")) for split in ("train", "test"))
        assert (len(train), len(test)) == (20, 10)
        asked = [{str(datapoint.convo[-1]["content"]) for datapoint in each} for each in (train, test)]
        assert not asked[0] & asked[1]
    package = Path(tinker_cookbook.__file__).parent
    assert package not in Path(generate_data.default_folder("brief")).parents


@pytest.mark.long
def test_the_tiny_model_grades_itself_for_real(engine, tmp_path):
    cli_main(
        CLIConfig(
            log_path=str(tmp_path / "run"),
            groups_per_batch=4,
            group_size=4,
            n_batches=2,
            lora_rank=8,
            test_size=4,
            save_every=0,
        )
    )
    rows = metrics_of(tmp_path / "run")
    assert rows[0]["env/all/grader_failed"] < 0.2
    assert 0 < rows[0]["env/all/rubric_score"] < 1
    assert rows[0]["env/all/reply_chars"] > 1


def test_what_is_set_reaches_the_grader():
    cli = CLIConfig(
        data="addition", grader_model="Qwen/Qwen3-8B", grader_checkpoint="tinker://x/y", grader_timeout=9
    )
    builder: Any = build_config(cli).dataset_builder
    assert (builder.grader.model_name, builder.grader.checkpoint) == ("Qwen/Qwen3-8B", "tinker://x/y")
    assert (builder.grader.max_tokens, builder.grader_timeout) == (1024, 9)
    mine: Any = build_config(CLIConfig(train_data="mine.jsonl")).dataset_builder
    assert (mine.train_data, mine.test_data) == ("mine.jsonl", None)
