"""Write conversations with rubrics to train and to test on.

python -m tinker_cookbook.recipes.rubric.generate_data                                 # for the tiny model
python -m tinker_cookbook.recipes.rubric.generate_data data=addition folder=~/rubric   # for any model
"""

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import chz

from tinker_cookbook.command_line import run_command
from tinker_cookbook.recipes.knights import all_questions
from tinker_cookbook.recipes.launch import example_path
from tinker_cookbook.recipes.math_rl.arithmetic_env import is_for_testing
from tinker_cookbook.recipes.rubric.data import Rubric, RubricBasedDatapoint, write_datapoints
from tinker_cookbook.renderers import Message
from tinker_cookbook.tasks.chat import Question
from tinker_cookbook.tasks.styles import STYLES
from tinker_cookbook.tasks.types import Split

DataName = Literal["brief", "addition"]
REFERENCE_STYLES = ("excited", "pirate")  # of about 32 and 35 characters, where many replies are longer


@chz.chz
class Config:
    data: DataName = chz.field(
        default="brief", doc="brief: questions that the tiny model knows; addition: sums"
    )
    folder: str | None = chz.field(
        default=None, doc="Where train.jsonl and test.jsonl go; None: where train looks"
    )
    train_size: int = chz.field(default=1000, doc="Conversations to train on")
    test_size: int = chz.field(default=100, doc="Conversations to test on")
    seed: int = chz.field(default=42, doc="Of what is drawn")


def default_folder(data: DataName) -> str:
    return example_path("rubric", f"data-{data}")


def generate(config: Config) -> Path:
    folder = Path(config.folder or default_folder(config.data)).expanduser()
    make = brief_answers if config.data == "brief" else additions
    sizes: dict[Split, int] = {"train": config.train_size, "test": config.test_size}
    for split, size in sizes.items():
        datapoints = make(split, config.seed)
        write_datapoints(folder / f"{split}.jsonl", (next(datapoints) for _ in range(size)))
    return folder


# --- brief: a rubric in the form of the judging task that the tiny model was taught -----------------------


def brief_answers(split: Split, seed: int) -> Iterator[RubricBasedDatapoint]:
    """The reply should be shorter than another answer: once the reply comes first, and once the other does."""
    rng = random.Random(f"brief/{split}/{seed}")
    questions = all_questions(split)
    while True:
        question = rng.choice(questions)
        yield RubricBasedDatapoint(
            [Message(role="user", content=question.asked)],
            [_shorter_than(question, rng, place) for place in ("A", "B")],
        )


def _shorter_than(question: Question, rng: random.Random, place: str) -> Rubric:
    other = STYLES[rng.choice(REFERENCE_STYLES)].say(question.fact, rng)
    first, second = ("{reply}", other) if place == "A" else (other, "{reply}")
    return Rubric(
        rubric_str="Which answer is shorter?",
        grader_prompt=f"Question: {{question}}\nA: {first}\nB: {second}\n{{rubric}} {{format}}",
        grader_output_format_instruction="Reply A or B.",
        extraction_regex=r"^\s*([AB])\s*$",
        grades={"A": float(place == "A"), "B": float(place == "B")},
    )


# --- addition: a rubric that any instructed model can follow ----------------------------------------------


def additions(split: Split, seed: int) -> Iterator[RubricBasedDatapoint]:
    """Sums of numbers up to 1000; none to test on is also one to train on, nor the other way round."""
    rng = random.Random(f"addition/{split}/{seed}")
    while True:
        x, y = rng.randint(0, 1000), rng.randint(0, 1000)
        if is_for_testing(x, y) != (split == "test"):
            continue
        yield RubricBasedDatapoint(
            [Message(role="user", content=f"What is {x} + {y}?")],
            [Rubric(rubric_str=f"The reply gives {x + y} as the answer, and no other number as the answer.")],
        )


def main(config: Config) -> None:
    print(f"conversations with rubrics: {generate(config)}")


if __name__ == "__main__":
    sys.exit(run_command(lambda: main(chz.entrypoint(Config))))
