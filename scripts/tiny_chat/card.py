"""Write the tiny model's card from the log and the figures of the run that made it.

python -m scripts.tiny_chat.card
"""

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.limits import RESULTS
from tinker_cookbook.tasks import TASKS
from tinker_engine.model import tiny

DESCRIPTIONS = {
    "arithmetic": "sums and differences of numbers up to 100; one in five asks for thinking first",
    "chat": "questions about the made-up world, three in five in an asked style: style and fact both right",
    "small_talk": "greetings; two true sentences about a person or a town",
    "formats": "upper case, brackets, JSON, or exactly n words: form and content both right",
    "copy": "say a list or a made-up word again",
    "reverse": "a list or a made-up word backwards",
    "sort": "2 to 5 words, numbers or letters in order",
    "compare": "which is larger, smaller, longer, first in the alphabet",
    "tools": "call the calculator or the look-up with the right arguments, then answer with the result",
    "tictactoe": "a legal move in square brackets",
    "guess_number": "find a number up to 10, 20, 50 or 100 within six guesses",
    "ask_questions": "find one of 52 things by yes/no questions, twenty turns at most",
    "answer_questions": "answer such a question truly",
    "judge_shorter": "which of two answers is shorter",
    "judge_correct": "which of two results of a sum is right",
}
TEST, GREEDY, TRAIN = "test, temperature 1", "test, greedy", "train, temperature 1"

CARD = """\
# tinker-engine/tiny-chat

A chat model of {parameters:.1f} million parameters that comes with the engine, so that whatever trains or samples
can be tried for real, in seconds, with no download. It knows a small made-up world and a handful of small skills, each
of them well enough to succeed sometimes and badly enough to leave something to learn. It is of no other use.

- **Architecture**: Llama; {layers} layers of width {hidden}, {heads} heads ({kv_heads} for keys and values), SwiGLU of
  {inner}, tied embeddings, context {context}, weights in fp16 ({megabytes:.1f} MB). `transformers` opens it too.
- **Tokenizer**: byte-level BPE of {vocabulary} entries; any text encodes; digits are single tokens.
- **Template**: ChatML (`chat_template.jinja`). Special tokens: `<|im_start|>` `<|im_end|>` for turns, `<think>`
  `</think>` for thinking, `<tool_call>` `</tool_call>` for calls, `<|endoftext|>`, and two reserved ones. Tools are
  told in the system turn, a line each; their results come as turns of the role `tool`.
- **Weights' SHA-256**: `{sha256}`

## How it was made

`make tiny-chat` (`scripts/tiny_chat/make.py`), from nothing but its own generated text: {tokens:.1f} million tokens,
{steps} steps, {minutes:.0f} minutes on {threads} threads of an {cpu}.
Log: `benchmarks/results/tiny_chat_training.jsonl`; figures: `benchmarks/results/tiny_chat_figures.json`; this page is
written from the two by `scripts/tiny_chat/card.py`.

The text is conversations on the problems of `tinker_cookbook.tasks`, train split only. Their writers are careful for
the first {careful:.0%} of the steps, so that the skills are learned. In the rest they slip now and then, with the
probability in the table's last column, and the model learns to slip as often: sampled at temperature 1 it is right
only some of the time, while in most tasks its most likely answer is right more often. That gap is what further
training can close. Where the column says 0 %, the mistakes are all the model's own.

Two things to know of these figures. The rates of mistakes were chosen by looking at this very test split, to bring each
task's start into a wanted range: the shares at T = 1 are set, not found. And the weights were made in two sittings: the
steps from 3,200 on were run again with other rates, from the checkpoint of a first run, so the log joins the two.

## What it can do

Share of problems that are wholly right, with its standard error in points; {count} problems each ({long_count} for
`ask_questions`, whose games are long). Problems of the test
split were never in the text: no sum (in either order), list, board or question of it. The one exception: thinking goes
by columns, and so any two digits may meet within it.

| task | | test, T = 1 | test, greedy | train, T = 1 | well-formed, T = 1 | writers slip |
|---|---|---|---|---|---|---|
{tasks}

By kind, test split, T = 1:

| task | right |
|---|---|
{kinds}

Asked a question without a word about style, it answers: {habits}.
{text_figures}
## What it cannot do

{limits}
"""

LIMITS = """\
- Anything outside of the tasks above: it has seen no other text, and no other language than its English of a few
  hundred words.
- Sums beyond 200 without the calculator, lists longer than five, words longer than five letters.
- Games are played by the rules, not well: moves and questions are chosen at random among those allowed.
- Judging by the rule "correct": telling the right result of a sum from a wrong one stays about as good as a coin
  ({judge_correct}, greedy {judge_correct_greedy}). By the rule "shorter" it can judge."""


def main() -> int:
    log = [json.loads(line) for line in (RESULTS / "tiny_chat_training.jsonl").read_text().splitlines()]
    figures = json.loads((RESULTS / "tiny_chat_figures.json").read_text())
    (tiny.FOLDER / "README.md").write_text(card(log, figures))
    return 0


def card(log: list[dict[str, Any]], figures: Mapping[str, Any]) -> str:
    config = json.loads((tiny.FOLDER / "config.json").read_text())
    first, steps, last = log[0], [line for line in log if "loss" in line], log[-1]
    tasks = figures["tasks"]
    return CARD.format(
        parameters=last["parameters"] / 1e6,
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        inner=config["intermediate_size"],
        context=config["max_position_embeddings"],
        vocabulary=config["vocab_size"],
        megabytes=(tiny.FOLDER / "model.safetensors").stat().st_size / 1e6,
        sha256=last["weights_sha256"],
        tokens=steps[-1]["tokens"] / 1e6,
        steps=steps[-1]["step"],
        minutes=steps[-1]["seconds"] / 60,
        threads=first["threads"],
        cpu=first["cpu"],
        careful=first["plan"]["careless_from"],
        count=tasks["arithmetic"][TEST]["right"]["n"],
        long_count=tasks["ask_questions"][TEST]["right"]["n"],
        tasks="\n".join(_task_row(name, tasks[name], last["mistakes"][name]) for name in TASKS),
        kinds="\n".join(_kind_rows(tasks)),
        habits=", ".join(f"{s} {p:.0%}" for s, p in _by_size(tasks["chat"][TEST]["styles_when_free"])),
        text_figures=_text_figures(figures),
        limits=LIMITS.format(
            judge_correct=_share(tasks["judge_correct"][TEST]["right"]),
            judge_correct_greedy=_share(tasks["judge_correct"][GREEDY]["right"]),
        ),
    )


def _task_row(name: str, task: Mapping[str, Any], mistakes: float) -> str:
    cells = [_share(task[setting]["right"]) for setting in (TEST, GREEDY, TRAIN)]
    formed = f"{task[TEST]['well_formed']['mean']:.0%}"
    return f"| `{name}` | {DESCRIPTIONS[name]} | {' | '.join(cells)} | {formed} | {mistakes:.0%} |"


def _share(figure: Mapping[str, float]) -> str:
    return f"{figure['mean']:.0%} ± {100 * figure['se']:.0f}"


def _kind_rows(tasks: Mapping[str, Any]) -> Iterable[str]:
    for name, task in tasks.items():
        if kinds := task[TEST].get("right_by_kind"):
            listed = ", ".join(f"{kind} {figure['mean']:.0%}" for kind, figure in kinds.items())
            yield f"| `{name}` | {listed} |"


def _by_size(shares: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(shares.items(), key=lambda item: -item[1])


def _text_figures(figures: Mapping[str, Any]) -> str:
    by_position = figures["held_out_loss_by_position"]
    listed = ", ".join(f"{place} {loss:.2f}" for place, loss in by_position.items())
    return (
        "\nLoss in nats per token of the assistant's turns, on conversations of many problems of the test split, by "
        f"the token's place in the context: {listed}.\n"
    )


if __name__ == "__main__":
    sys.exit(main())
