"""A report such as an RL iteration writes: for tests, and to be looked at.

python -m tests.tinker_cookbook.utils.sample_report FOLDER
"""

import asyncio
import json
import random
import sys
from pathlib import Path

from tinker_cookbook.renderers.messages import Message, ToolCall, UnparsedToolCall
from tinker_cookbook.utils import logtree
from tinker_cookbook.utils.logtree_formatters import ConversationFormatter, TokensFormatter
from tinker_cookbook.utils.trace import IterationWindow, save_gantt_chart_html

QUESTION = (
    "A box holds 12 red and 8 blue pens. I take out 5 pens, of which 3 are red.\n\n"
    "How many blue pens are left? Use the calculator, and answer as \\boxed{...}."
)
THINKING = "There were 8 blue pens. Of the 5 taken, 3 were red, so 5 - 3 = 2 were blue.\nThat leaves 8 - 2."
PIXEL = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def conversation(answer: int, unreadable: bool, long: bool) -> list[Message]:
    call = ToolCall(
        id="call_1",
        function=ToolCall.FunctionBody(
            name="calculator", arguments=json.dumps({"expression": "8 - (5 - 3)"})
        ),
    )
    thinking = "\n".join([THINKING, *["Let me check that again, step by step."] * 60]) if long else THINKING
    messages: list[Message] = [
        {"role": "system", "content": "You are a careful assistant. You may use `calculator`."},
        {"role": "user", "content": QUESTION},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": thinking},
                {"type": "text", "text": "I compute what is left."},
            ],
            "tool_calls": [call],
        },
        {"role": "tool", "content": str(answer), "tool_call_id": "call_1", "name": "calculator"},
        {
            "role": "assistant",
            "content": f"There are {answer} blue pens left: \\boxed{{{answer}}}\n\n"
            "    blue = 8 - (5 - 3)\n\n<b>not markup</b> & a_very_long_word_" + "that_goes_on_" * 12,
        },
    ]
    if unreadable:
        broken = UnparsedToolCall(
            raw_text='{"name": "calculator", "arguments": {"expression": "8 -', error="no end"
        )
        messages[2] = {**messages[2], "tool_calls": [], "unparsed_tool_calls": [broken]}
        messages[1] = {
            "role": "user",
            "content": [
                {"type": "text", "text": QUESTION},
                {"type": "image", "image": PIXEL},
                {"type": "image", "image": "https://example.com/pens.png"},
            ],
        }
    return messages


def tokens(random_: random.Random) -> TokensFormatter:
    words = (THINKING + "\n\nThere are 6 blue pens left: \\boxed{6}").replace(" ", "\0 ").split("\0")
    advantages = [random_.gauss(0.2, 0.5) for _ in words]
    values = [None, None, None, *advantages[3:-1], float("nan")]
    ids = [random_.randrange(50_000) for _ in words]
    return TokensFormatter(words, values, "Last response", token_ids=ids, label="advantage")


async def rollout(index: int) -> None:
    random_ = random.Random(index)
    with logtree.scope_header(f"Rollout {index}"):
        await asyncio.sleep(0)
        answer = random_.choice([6, 6, 5])
        logtree.log_formatter(ConversationFormatter(conversation(answer, index == 2, index == 3)))
        await asyncio.sleep(0)
        logtree.table_from_dict(
            {"reward": float(answer == 6), "format": 1.0, "turns": 2, "seconds": random_.random() * 3},
            caption="Metrics",
            sort_by="key",
        )
        logtree.log_formatter(tokens(random_))
        logtree.details("\n".join(f"{k:>4}: prompt token" for k in range(40)), summary="Prompt tokens")


async def group(index: int) -> None:
    with logtree.scope_header(f"Group {index}: arithmetic"):
        logtree.log_text("Problem 17 of the training set, 4 rollouts, none of them failed.")
        await asyncio.gather(*(rollout(4 * index + k) for k in range(4)))
        rows = [
            {"rollout": k, "reward": 1 / (k + 1), "advantage": k - 1.5, "tokens": 100 + k, "end": "stop"}
            for k in range(4)
        ]
        logtree.table(rows, caption="Rewards of the group")


async def iteration() -> None:
    with logtree.scope_header("RL iteration 12"):
        await asyncio.gather(*(group(k) for k in range(2)))
    with logtree.scope_header("Evaluation"):
        try:
            with logtree.scope_header("Problem 3"):
                raise TimeoutError("the sandbox did not answer in 30 s")
        except TimeoutError:
            logtree.log_text("This problem is counted as failed.")


def window() -> IterationWindow:
    random_ = random.Random(0)
    spans = IterationWindow()
    spans.record_span("sampling", 0, 30)
    for k in range(16):
        begin = random_.random() * 4
        spans.record_span("do_group_rollout", begin, begin + 10 + random_.random() * 15)
        for turn in range(3):
            spans.record_span("policy_sample", begin + 3 * turn, begin + 3 * turn + 2.8)
            spans.record_span("env_step", begin + 3 * turn + 2.8, begin + 3 * turn + 2.81 + k / 50)
    spans.record_span("train_step", 30.2, 41)
    for k in range(4):
        spans.record_span("forward_backward_async", 30.3 + 2 * k, 33 + 2 * k)
    spans.record_span("save_checkpoint", 41, 42.4)
    spans.total_time = 42.7
    return spans


def write(folder: Path) -> logtree.Trace:
    with logtree.init_trace("Iteration 12 <train>", folder / "train.html") as trace:
        asyncio.run(iteration())
    logtree.write_trace_json(trace, folder / "train_logtree.json")
    save_gantt_chart_html(window(), 12, folder / "timing_gantt.html")
    return trace


if __name__ == "__main__":
    write(Path(sys.argv[1]))
