"""Step 3: the teacher with the prompt, the student before and after without it, on texts that none was trained on.

python -m tinker_cookbook.recipes.prompt_distillation.evaluate                     # what `train` wrote last
python -m tinker_cookbook.recipes.prompt_distillation.evaluate task=language_id model_name=... checkpoint=tinker://...
"""

import asyncio
import json
import sys
from pathlib import Path

import chz

from tinker_cookbook.checkpoint_utils import get_last_checkpoint
from tinker_cookbook.command_line import run_command
from tinker_cookbook.exceptions import CheckpointError
from tinker_cookbook.recipes.launch import TINY_MODEL
from tinker_cookbook.recipes.prompt_distillation.evaluator import Score, score
from tinker_cookbook.recipes.prompt_distillation.models import open_model
from tinker_cookbook.recipes.prompt_distillation.tasks import DistillationTask, get_task
from tinker_cookbook.recipes.prompt_distillation.train import default_log_path
from tinker_cookbook.utils.atomic_file import write_text_atomically

SHOWN = 4  # texts of which the answers are shown


@chz.chz
class Config:
    task: str = chz.field(default="one_word", doc="one_word or language_id")
    model_name: str = chz.field(default=TINY_MODEL, doc="The student's base model")
    checkpoint: str | None = chz.field(default=None, doc="tinker:// path of the student; None: from log_path")
    log_path: str | None = chz.field(
        default=None, doc="Run of the student; None: where train logs by default"
    )
    teacher_model_name: str | None = chz.field(default=None, doc="None: the student's base model")
    teacher_checkpoint: str | None = chz.field(default=None, doc="tinker:// path of the teacher, if trained")
    renderer_name: str | None = chz.field(default=None, doc="None: that of the checkpoint or of the model")
    teacher_renderer_name: str | None = chz.field(default=None, doc="None: that of the teacher")
    base_url: str | None = chz.field(
        default=None, doc="Server; None: TINKER_BASE_URL, else one on this machine"
    )
    output_file: str | None = chz.field(default=None, doc="JSON of the scores; None: not written")


async def evaluate(config: Config) -> dict[str, Score]:
    task = get_task(config.task)
    student = config.checkpoint or _student_of(
        config.log_path or default_log_path(config.task, config.model_name)
    )
    teacher_name = config.teacher_model_name or config.model_name
    teacher = await open_model(
        teacher_name, config.teacher_checkpoint, config.teacher_renderer_name, config.base_url
    )
    before = await open_model(config.model_name, None, config.renderer_name, config.base_url)
    after = await open_model(config.model_name, student, config.renderer_name, config.base_url)
    return {
        "teacher, with the prompt": await score(*teacher, task, with_prompt=True),
        "before, without it": await score(*before, task, with_prompt=False),
        "after, without it": await score(*after, task, with_prompt=False),
    }


def _student_of(log_path: str) -> str:
    record = get_last_checkpoint(log_path, required_key="sampler_path")
    if record is None or record.sampler_path is None:
        raise CheckpointError(
            f"{log_path} has no weights to sample from: train first, or give checkpoint=tinker://... or log_path="
        )
    return record.sampler_path


def report(task: DistillationTask, scores: dict[str, Score]) -> str:
    texts = len(task.items("test"))
    lines = [f"{task.name}: {texts} held-out texts, {len(task.labels)} labels", ""]
    lines.append(f"{'':26}{'right':>8}{'in the label set':>20}")
    lines += [
        f"{name:26}{result.accuracy:>8.1%}{result.in_label_set:>20.1%}" for name, result in scores.items()
    ]
    lines.append("")
    for i, item in enumerate(task.items("test")[:SHOWN]):
        lines.append(item.text)
        lines += [f"  {name:26}{result.answers[i].reply[:100]!r}" for name, result in scores.items()]
    return "\n".join(lines)


def main(config: Config) -> None:
    scores = asyncio.run(evaluate(config))
    print(report(get_task(config.task), scores))
    if config.output_file is not None:
        figures = {
            name: {"accuracy": result.accuracy, "in_label_set": result.in_label_set}
            for name, result in scores.items()
        }
        write_text_atomically(Path(config.output_file).expanduser(), json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(run_command(lambda: main(chz.entrypoint(Config))))
