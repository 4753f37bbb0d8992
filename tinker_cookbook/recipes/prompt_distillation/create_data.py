"""Step 1: a teacher with the prompt answers the texts; what it answered is written down without the prompt.

python -m tinker_cookbook.recipes.prompt_distillation.create_data                  # the tiny model, one_word
python -m tinker_cookbook.recipes.prompt_distillation.create_data task=language_id model_name=Qwen/Qwen3.6-35B-A3B \\
    renderer_name=qwen3_5_disable_thinking input_file=my_texts.txt output_file=labelled.jsonl
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import chz

from tinker_cookbook.command_line import run_command
from tinker_cookbook.exceptions import DataValidationError
from tinker_cookbook.recipes.asking import ask
from tinker_cookbook.recipes.launch import TINY_MODEL, example_path
from tinker_cookbook.recipes.prompt_distillation.models import open_model
from tinker_cookbook.recipes.prompt_distillation.tasks import DistillationTask, Item, get_task, read_items
from tinker_cookbook.renderers import Message
from tinker_cookbook.utils.atomic_file import write_text_atomically

SHOWN = 3  # answers without a label that are shown


@chz.chz
class Config:
    task: str = chz.field(default="one_word", doc="one_word or language_id")
    model_name: str = chz.field(default=TINY_MODEL, doc="The teacher")
    checkpoint: str | None = chz.field(
        default=None, doc="tinker:// path of the teacher's weights, if trained"
    )
    renderer_name: str | None = chz.field(default=None, doc="None: that of the checkpoint or of the model")
    base_url: str | None = chz.field(
        default=None, doc="Server; None: TINKER_BASE_URL, else one on this machine"
    )
    input_file: str | None = chz.field(default=None, doc="Texts, one a line; None: those of the task")
    output_file: str | None = chz.field(default=None, doc="JSONL of conversations; None: where train looks")
    temperature: float = chz.field(default=0.15, doc="Of the teacher")
    seed: int = chz.field(default=0, doc="Of the teacher's answers")


def default_file(task: str) -> str:
    return example_path("prompt_distillation", f"{task}.jsonl")


async def create(config: Config) -> Path:
    task = get_task(config.task)
    items = (
        task.items("train") if config.input_file is None else read_items(Path(config.input_file).expanduser())
    )
    teacher, renderer = await open_model(
        config.model_name, config.checkpoint, config.renderer_name, config.base_url
    )
    prompts = [
        [Message(role="system", content=task.prompt), Message(role="user", content=item.text)]
        for item in items
    ]
    replies = await ask(
        teacher,
        renderer,
        prompts,
        max_tokens=task.teacher_tokens,
        temperature=config.temperature,
        seed=config.seed,
    )
    output = Path(config.output_file or default_file(config.task)).expanduser()
    labels = [task.read_teacher(reply) for reply in replies]
    _report(items, replies, labels)
    rows = [_row(task, item, label) for item, label in zip(items, labels, strict=True) if label is not None]
    if not rows:
        raise DataValidationError(
            f"none of {len(items)} answers of {config.model_name} comes down to a label of {task.name}: the teacher "
            "does not follow the prompt; try another model_name"
        )
    write_text_atomically(output, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    print(f"{len(rows)} conversations without the prompt: {output}")
    return output


def _row(task: DistillationTask, item: Item, label: str) -> dict[str, list[dict[str, str]]]:
    return {
        "messages": [
            {"role": "user", "content": item.text},
            {"role": "assistant", "content": task.write(label)},
        ]
    }


def _report(items: Sequence[Item], replies: Sequence[str], labels: Sequence[str | None]) -> None:
    """What is left out is said and shown; what is wrong is counted and kept, for it is the teacher that is learned."""
    left_out = [reply for reply, label in zip(replies, labels, strict=True) if label is None]
    print(
        f"{len(items)} texts answered; {len(left_out)} answers left out, for they have no label of the task"
    )
    for reply in left_out[:SHOWN]:
        print(f"  left out: {reply[:200]!r}")
    known = [
        (item.label, label)
        for item, label in zip(items, labels, strict=True)
        if label is not None and item.label is not None
    ]
    if known:
        right = sum(truth == label for truth, label in known)
        print(f"the teacher is right in {right / len(known):.1%} of the {len(known)} whose label is known")


def main(config: Config) -> None:
    asyncio.run(create(config))


if __name__ == "__main__":
    sys.exit(run_command(lambda: main(chz.entrypoint(Config))))
