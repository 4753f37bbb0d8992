"""Teach the tiny model a way of talking it has never seen, and show what changed. What `make demo` runs.

The model answers questions about a small made-up world. LoRA fine-tuning on questions of the train split teaches it
to answer like a knight; questions of the test split show that it took on the style and kept its facts.
"""

import itertools
import random
import shutil
import sys
import textwrap
import time
from collections.abc import Sequence

import numpy as np
import torch
from tqdm import tqdm

from scripts.tiny_chat.chatml import END, prompt_text
from scripts.tiny_chat.evaluate import Talker
from tinker_cookbook.tasks.chat import Chat, Question
from tinker_cookbook.tasks.styles import NEW_STYLE, STYLES, style_of
from tinker_cookbook.tasks.types import Split
from tinker_engine.model.load import load_model
from tinker_engine.model.lora import Adapter, LoraSpec
from tinker_engine.model.tokenizer import Tokenizer
from tinker_engine.sampling.types import SampleRequest, SamplingParams
from tinker_engine.training.trainer import Trainer
from tinker_engine.training.types import AdamParams, Datum

STEPS = 100
BATCH = 32  # questions a step
RATE = 3e-3
SHOWN = 5
TESTED = 200  # unseen questions for the figures


def main() -> int:
    model = load_model()
    talker = Talker.of(model)
    trainer = Trainer(talker.sampler.decoder)
    run = trainer.create_run(LoraSpec(rank=16, seed=0))
    tests = questions("test", 0, TESTED)
    print(f"{model.name} answers questions about a made-up world. It has never heard a knight talk.")
    before = answers(talker, tests, None)

    losses: list[float] = []
    started = time.perf_counter()
    bar = tqdm(range(STEPS), desc="fine-tuning", unit="step", file=sys.stderr)
    for step in bar:
        data, tokens = batch(model.tokenizer, step)
        output = trainer.forward_backward(run, data, "cross_entropy")
        # Losses are sums over tokens; clipping keeps the step's size independent of their number.
        trainer.optim_step(run, AdamParams(learning_rate=RATE * (1 - step / STEPS), grad_clip_norm=1.0))
        losses.append(output.metrics["loss:sum"] / tokens)
        bar.set_postfix(loss=f"{losses[-1]:.3f}")
    seconds = time.perf_counter() - started
    adapter = run.adapter.snapshot()
    after = answers(talker, tests, adapter)

    print(f"\nLoss per token of the answers, {STEPS} steps in {seconds:.0f} s:\n\n{chart(losses)}\n")
    print(side_by_side(tests[:SHOWN], before, after))
    print(f"\nof {TESTED} questions it was not trained on      before   after")
    for label, passes in (("in the new style", in_style), ("in the new style and true", is_right)):
        shares = (sum(map(passes, tests, given)) / TESTED for given in (before, after))
        print(f"  {label:38}" + "".join(f"{share:8.0%}" for share in shares))
    print(
        f"\nlargest gap between the sampler's and the trainer's logprob: {logprob_gap(talker, trainer, adapter):.1e}"
    )
    return 0


def questions(split: Split, start: int, count: int) -> list[Question]:
    """Asked without a word about style: that the answers are to be a knight's is what has to be learned."""
    task = Chat(asked=0)
    return [task.problem(split, index) for index in range(start, start + count)]


def batch(tokenizer: Tokenizer, step: int) -> tuple[list[Datum], int]:
    """Questions with a knight's answers, and how many tokens of answers there are."""
    rng = random.Random(step)
    data: list[Datum] = []
    learned = 0
    for question in questions("train", step * BATCH, BATCH):
        prompt = tokenizer.encode(prompt_text(question.prompt))
        answer = tokenizer.encode(STYLES[NEW_STYLE].say(question.fact, rng) + END)
        tokens = prompt + answer
        weights = [0.0] * (len(prompt) - 1) + [1.0] * len(answer)
        data.append(Datum(tokens[:-1], {"target_tokens": tokens[1:], "weights": weights}))
        learned += len(answer)
    return data, learned


def answers(talker: Talker, asked: Sequence[Question], adapter: Adapter | None) -> list[str]:
    prompts = [prompt_text(question.prompt) for question in asked]
    return talker.reply(prompts, temperature=0.7, seed=0, adapter=adapter)


def in_style(_: Question, answer: str) -> bool:
    return style_of(answer) == NEW_STYLE


def is_right(question: Question, answer: str) -> bool:
    return in_style(question, answer) and question.check([answer])


def chart(values: Sequence[float], *, width: int = 64, height: int = 8) -> str:
    """A curve in eighths of a character's height; each column is the mean of its share of the values."""
    width = min(width, len(values))
    edges = [len(values) * column // width for column in range(width + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    top = max(means)
    rows = []
    for row in range(height, 0, -1):
        eighths = [min(8, max(0, round(8 * (height * mean / top - row + 1)))) for mean in means]
        label = f"{top * row / height:6.2f}" if row in (1, height) else " " * 6
        rows.append(f"{label} │" + "".join(" ▁▂▃▄▅▆▇█"[part] for part in eighths))
    return "\n".join([*rows, " " * 7 + "└" + "─" * width])


def side_by_side(asked: Sequence[Question], before: Sequence[str], after: Sequence[str]) -> str:
    columns = shutil.get_terminal_size((100, 24)).columns
    width = max(24, min(48, (columns - 3) // 2))
    lines = [f"{'before':{width}} │ after", "─" * width + "─┼─" + "─" * width]
    for question, *pair in zip(asked, before, after, strict=False):
        lines.append(f"{question.asked:{width}} │")
        left, right = (textwrap.wrap(text, width - 2) for text in pair)
        for a, b in itertools.zip_longest(left, right, fillvalue=""):
            lines.append(f"  {a:{width - 2}} │   {b}".rstrip())
    return "\n".join(lines)


def logprob_gap(talker: Talker, trainer: Trainer, adapter: Adapter) -> float:
    """Sample at temperature 1, where the sampler's logprobs are the model's, and score that with the trainer."""
    (question,) = questions("test", TESTED, 1)
    prompt = talker.tokenizer.encode(prompt_text(question.prompt))
    params = SamplingParams(max_tokens=64, seed=2)
    (result,) = talker.sampler.sample([SampleRequest(prompt, params, num_samples=16, adapter=adapter)])
    worst = 0.0
    for sequence in result.sequences:
        full = prompt + sequence.tokens
        inputs = {"target_tokens": full[1:], "weights": np.zeros(len(full) - 1)}
        scored = trainer.forward(adapter, [Datum(full[:-1], inputs)], "cross_entropy").logprobs[0]
        own = torch.tensor(sequence.logprobs)
        worst = max(worst, float((scored[len(prompt) - 1 :] - own).abs().max()))
    return worst


if __name__ == "__main__":
    sys.exit(main())
