"""All three steps on the real engine: a teacher's answers, a student, and what each is worth."""

import json
from pathlib import Path

import pytest

from tests.tinker_cookbook.recipes.runs import metrics_of
from tinker_cookbook.exceptions import CheckpointError, ConfigurationError, DataValidationError
from tinker_cookbook.recipes.prompt_distillation import create_data, evaluate, train
from tinker_cookbook.recipes.prompt_distillation.tasks import ONE_WORD


@pytest.mark.long
def test_the_student_learns_to_do_without_the_prompt(engine, tmp_path, monkeypatch, capsys):
    """As a user would, from anywhere, with nothing but the defaults for where things are."""
    monkeypatch.chdir(tmp_path)
    create_data.main(create_data.Config())
    shown = capsys.readouterr().out
    assert "355 texts answered" in shown
    assert "the teacher is right in 9" in shown
    lines = Path(create_data.default_file("one_word")).read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert len(rows) > 250
    for row in rows:
        user, assistant = row["messages"]
        assert ONE_WORD.prompt not in user["content"]
        assert ONE_WORD.read_student(assistant["content"]) is not None

    train.cli_main(
        train.CLIConfig(max_steps=24, lora_rank=8, learning_rate=5e-3, eval_every=100, save_every=0)
    )
    first = metrics_of(train.default_log_path("one_word", "tinker-engine/tiny-chat"))[0]
    assert first["test/accuracy"] == 0.0

    evaluate.main(evaluate.Config(output_file=str(tmp_path / "scores.json")))
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert scores["teacher, with the prompt"]["accuracy"] > 0.7
    assert scores["before, without it"]["accuracy"] == 0.0
    assert scores["after, without it"]["accuracy"] > 0.7
    shown = capsys.readouterr().out
    assert "one_word: 47 held-out texts, 66 labels" in shown
    assert "'Ostra.'" in shown


def test_own_texts_without_labels(engine, tmp_path, capsys):
    texts, output = tmp_path / "texts.txt", tmp_path / "out.jsonl"
    texts.write_text("Where does Tavi live?\nWhat is Mara's job?\n")
    create_data.main(create_data.Config(input_file=str(texts), output_file=str(output), temperature=0.0))
    assert "the teacher is right" not in capsys.readouterr().out
    answers = [json.loads(line)["messages"][1]["content"] for line in output.read_text().splitlines()]
    assert answers == ["Ostra.", "Sailor."]


def test_a_teacher_that_gives_no_label_writes_nothing(engine, tmp_path):
    """The tiny model knows nothing of languages."""
    output = tmp_path / "out.jsonl"
    texts = tmp_path / "texts.txt"
    texts.write_text("de\tGuten Tag\n")
    config = create_data.Config(task="language_id", input_file=str(texts), output_file=str(output))
    with pytest.raises((DataValidationError, ConfigurationError)):
        create_data.main(config)
    assert not output.exists()


def test_steps_in_the_wrong_order(tmp_path):
    with pytest.raises(ConfigurationError, match="create_data task=one_word"):
        train.build_config(train.CLIConfig(file_path=str(tmp_path / "none.jsonl")))
    with pytest.raises(CheckpointError, match="train first"):
        evaluate.main(evaluate.Config(log_path=str(tmp_path)))
