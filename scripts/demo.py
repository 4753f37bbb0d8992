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
from typing import Any

import tinker
from tinker import types
from tqdm import tqdm

from scripts.tiny_chat.chatml import END, prompt_text
from tinker_cookbook.service import connect
from tinker_cookbook.tasks.chat import Chat, Question
from tinker_cookbook.tasks.styles import NEW_STYLE, STYLES, style_of
from tinker_cookbook.tasks.types import Split

MODEL = "tinker-engine/tiny-chat"
STEPS = 100
BATCH = 32  # questions a step
RATE = 3e-3
SHOWN = 5
TESTED = 200  # unseen questions for the figures


def main() -> int:
    service = connect()
    client = service.create_lora_training_client(MODEL, rank=16, seed=0)
    tokenizer = client.get_tokenizer()
    tests = questions("test", 0, TESTED)
    print(f"{MODEL} answers questions about a made-up world. It has never heard a knight talk.")
    before = answers(service.create_sampling_client(base_model=MODEL), tokenizer, tests)

    started = time.perf_counter()
    losses = teach(client, tokenizer)
    seconds = time.perf_counter() - started
    taught = client.save_weights_and_get_sampling_client()
    after = answers(taught, tokenizer, tests)

    print(f"\nLoss per token of the answers, {STEPS} steps in {seconds:.0f} s:\n\n{chart(losses)}\n")
    print(side_by_side(tests[:SHOWN], before, after))
    print(f"\nof {TESTED} questions it was not trained on      before   after")
    for label, passes in (("in the new style", in_style), ("in the new style and true", is_right)):
        shares = (sum(map(passes, tests, given)) / TESTED for given in (before, after))
        print(f"  {label:38}" + "".join(f"{share:8.0%}" for share in shares))
    gap = logprob_gap(taught, client, tokenizer)
    print(f"\nlargest gap between the sampler's and the trainer's logprob: {gap:.1e}")
    return 0


def teach(client: tinker.TrainingClient, tokenizer: Any) -> list[float]:
    """Loss per token of each step. The next step is sent before the last is answered: the engine never waits."""
    losses: list[float] = []
    pending: list[tuple[Any, int]] = []
    with tqdm(total=STEPS, desc="fine-tuning", unit="step", file=sys.stderr) as bar:
        for step in range(STEPS):
            data, tokens = batch(tokenizer, step)
            pending.append((client.forward_backward(data, "cross_entropy"), tokens))
            # Losses are sums over tokens; clipping keeps the step's size independent of their number.
            client.optim_step(types.AdamParams(learning_rate=RATE * (1 - step / STEPS), grad_clip_norm=1.0))
            while len(pending) > (1 if step < STEPS - 1 else 0):
                gradient, tokens = pending.pop(0)
                losses.append(gradient.result().metrics["loss:sum"] / tokens)
                bar.set_postfix(loss=f"{losses[-1]:.3f}")
                bar.update()
    return losses


def questions(split: Split, start: int, count: int) -> list[Question]:
    """Asked without a word about style: that the answers are to be a knight's is what has to be learned."""
    task = Chat(asked=0)
    return [task.problem(split, index) for index in range(start, start + count)]


def batch(tokenizer: Any, step: int) -> tuple[list[types.Datum], int]:
    """Questions with a knight's answers, and how many tokens of answers there are."""
    rng = random.Random(step)
    data: list[types.Datum] = []
    learned = 0
    for question in questions("train", step * BATCH, BATCH):
        prompt = encode(tokenizer, prompt_text(question.prompt))
        answer = encode(tokenizer, STYLES[NEW_STYLE].say(question.fact, rng) + END)
        data.append(datum(prompt + answer, [0.0] * (len(prompt) - 1) + [1.0] * len(answer)))
        learned += len(answer)
    return data, learned


def datum(tokens: list[int], weights: list[float]) -> types.Datum:
    inputs = {
        "target_tokens": types.TensorData(data=tokens[1:], dtype="int64"),
        "weights": types.TensorData(data=weights, dtype="float32"),
    }
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)


def encode(tokenizer: Any, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def answers(sampler: tinker.SamplingClient, tokenizer: Any, asked: Sequence[Question]) -> list[str]:
    """All questions at once: the engine decodes them as one batch."""
    futures = [
        sampler.sample(
            types.ModelInput.from_ints(encode(tokenizer, prompt_text(question.prompt))),
            1,
            types.SamplingParams(max_tokens=100, temperature=0.7, seed=index),
        )
        for index, question in enumerate(asked)
    ]
    return [tokenizer.decode(f.result().sequences[0].tokens).removesuffix(END) for f in futures]


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


def logprob_gap(sampler: tinker.SamplingClient, client: tinker.TrainingClient, tokenizer: Any) -> float:
    """Sample at temperature 1, where the sampler's logprobs are the model's, and score that with the trainer."""
    (question,) = questions("test", TESTED, 1)
    prompt = encode(tokenizer, prompt_text(question.prompt))
    params = types.SamplingParams(max_tokens=64, seed=2)
    sequences = sampler.sample(types.ModelInput.from_ints(prompt), 16, params).result().sequences
    full = [prompt + list(sequence.tokens) for sequence in sequences]
    scored = client.forward([datum(tokens, [0.0] * (len(tokens) - 1)) for tokens in full], "cross_entropy")
    gaps = [
        abs(own - theirs)
        for sequence, output in zip(sequences, scored.result().loss_fn_outputs, strict=True)
        for own, theirs in zip(
            sequence.logprobs or [], output["logprobs"].tolist()[len(prompt) - 1 :], strict=True
        )
    ]
    return max(gaps)


if __name__ == "__main__":
    sys.exit(main())
