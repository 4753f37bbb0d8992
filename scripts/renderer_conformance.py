"""Compare every renderer with the chat template of its model and write `docs/renderer_conformance.md`.

python -m scripts.renderer_conformance TOKENIZERS

TOKENIZERS is a folder of Hugging Face tokenizer folders (qwen3, qwen3_5, llama3_1, deepseek_v3_1, gpt_oss). Prompts and
training examples of conversations of every kind (`tests/tinker_cookbook/renderers/conversations.py`) are compared
token by token. Where they differ, one of the family's stated reasons must apply, or this fails. It also writes
`tests/tinker_cookbook/renderers/frozen.json`: what the templates say in a few cases, on small tokenizers that can be
made anywhere.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from tqdm import tqdm

from tests.tinker_cookbook.renderers.conversations import Abilities, Conversation, conversations
from tests.tinker_cookbook.renderers.small_tokenizers import small_tokenizer
from tinker_cookbook.renderers import Message, Renderer, TrainOnWhat, get_renderer
from tinker_cookbook.renderers.base import ensure_list, get_text_content
from tinker_cookbook.renderers.encoding import common_length
from tinker_cookbook.tokenizer_utils import Tokenizer, get_tokenizer

ROOT = Path(__file__).resolve().parents[1]
REPORT = ROOT / "docs" / "renderer_conformance.md"
FROZEN = ROOT / "tests" / "tinker_cookbook" / "renderers" / "frozen.json"
COUNT = 400
FROZEN_COUNT = 6


@dataclass(frozen=True)
class Difference:
    name: str
    why: str
    applies: Callable[[Conversation], bool]


@dataclass(frozen=True)
class Family:
    renderer: str
    tokenizer: str  # a folder of TOKENIZERS, or the name of a model that is always there
    abilities: Abilities
    options: dict[str, Any] = field(default_factory=dict)  # of the template
    differences: tuple[Difference, ...] = ()
    adapt: Callable[[str, Sequence[Message]], str] = lambda text, _: (
        text
    )  # leaves out what is left out on purpose
    thinking_field: str = "reasoning_content"


# --- what a family does otherwise, and why -------------------------------------------------------------------


def texts(conversation: Conversation, *roles: str) -> list[str]:
    return [get_text_content(m) for m in conversation.messages if m["role"] in roles]


def thoughts(message: Message) -> list[str]:
    return [part["thinking"] for part in ensure_list(message["content"]) if part["type"] == "thinking"]


CONTROL = Difference(
    "text that spells a control token",
    "The template turns it into that token; here the text of a message stays text.",
    lambda c: "text that spells a control token" in c.features,
)
BLANK = Difference(
    "an answer that begins with a blank",
    "An answer is encoded apart from its header, as it is when sampled; in the template's text its blank may merge "
    "with the header's newline.",
    lambda c: any(text[:1].isspace() for text in texts(c, "assistant")),
)
EMPTY_SYSTEM = Difference(
    "tools and an empty system message",
    "The template writes the empty line that would follow the system message; here it is as if there were none.",
    lambda c: bool(c.tools) and c.messages[0] == {"role": "system", "content": ""},
)
EMPTY_BLOCK = Difference(
    "an answer without thinking",
    "The prompt ends within the think block, so the block's two newlines are two tokens, as when sampled; the "
    "template's are one.",
    lambda c: any(
        m["role"] == "assistant" and not thoughts(m) and i > c.last_user for i, m in enumerate(c.messages)
    ),
)
JSON_SCALARS = Difference(
    "true, false and null in arguments",
    "Written as JSON, as Qwen3.6 does, so that they are read back as what they are; Qwen3.5 writes True and None.",
    lambda c: any(
        any(isinstance(v, bool) or v is None for v in json.loads(call.function.arguments).values())
        for m in c.messages
        for call in m.get("tool_calls", [])
    ),
)
LLAMA_TRIM = Difference(
    "an answer with blanks at its edges",
    "The template trims answers; here an answer is shown again as it was written, so that prompts extend each other.",
    lambda c: any(text != text.strip() for text in texts(c, "assistant")),
)
INSTRUCT_THINKING = Difference(
    "thinking",
    "These models do not think. The template keeps thinking in the last answer and drops it elsewhere; here it is "
    "kept, between bare tags, so that prompts extend each other.",
    lambda c: "thinking" in c.features,
)
DEEPSEEK_AFTER_TOOL = Difference(
    "thinking after the result of a tool",
    "The template leaves it out, and its prompt does not ask for it; an answer that has it is trained with it.",
    lambda c: c.messages[-2]["role"] == "tool" and bool(thoughts(c.messages[-1])),
)
UNDECLARED = Difference(
    "declared tools",
    "The template has no place for them; they are told in the system message, in the words of the model's card.",
    lambda c: bool(c.tools),
)
HARMONY_DATE = Difference(
    "the date",
    "Never written unless `current_date` is given: a prompt does not depend on the day.",
    lambda c: False,
)
HARMONY_ROUTING = Difference(
    "declared tools",
    "The line that sends calls to the commentary channel belongs to the system message, which is otherwise left out; "
    "here a system message holds it alone.",
    lambda c: bool(c.tools),
)
HARMONY_CALLS = Difference(
    "calls and results of tools",
    "Written as Harmony specifies: `<|constrain|>json`, words before a call in the commentary channel, results as they "
    "are. The template leaves the token out, puts those words into analysis, and writes results as JSON strings.",
    lambda c: "tool calls" in c.features,
)


QWEN_TAGS = ("<|im_end|>", "<|im_start|>", "<think>", "</think>", "<tool_call>", "<|endoftext|>")
QWEN = Abilities(control_strings=QWEN_TAGS)
QWEN_RARELY_THINKING = Abilities(thinking=0.05, control_strings=QWEN_TAGS)
QWEN_NO_THINKING = Abilities(
    thinking=0.0, control_strings=tuple(tag for tag in QWEN_TAGS if "think" not in tag)
)
DEEPSEEK = Abilities(
    control_strings=("<｜User｜>", "<｜end▁of▁sentence｜>", "<think>", "<｜tool▁calls▁begin｜>")
)
GPT_OSS = Abilities(
    several_calls=False, control_strings=("<|end|>", "<|start|>", "<|return|>", "<|channel|>")
)


def without_preamble(text: str, messages: Sequence[Message]) -> str:
    """Llama's template says two dates before whatever the system message says, and has one in any case."""
    head, dates, rest = text.partition("Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n")
    assert dates, "the template has changed"
    if messages[0]["role"] == "system":
        return head + rest
    return (head + rest).replace("<|start_header_id|>system<|end_header_id|>\n\n<|eot_id|>", "", 1)


def with_thinking(text: str, messages: Sequence[Message]) -> str:
    """DeepSeek's template cannot write the thinking of a finished answer; it goes where the prompt says `<think>`."""
    if messages[-1]["role"] != "assistant" or messages[-2]["role"] != "user":
        return text
    head, _, tail = text.rpartition("<｜Assistant｜></think>")
    return f"{head}<｜Assistant｜><think>{''.join(thoughts(messages[-1]))}</think>{tail}"


def without_system(text: str, _: Sequence[Message]) -> str:
    end = text.index("<|end|>") + len("<|end|>")
    return text[end:]


def without_date(text: str, _: Sequence[Message]) -> str:
    start = text.index("Current date: ")
    return text[:start] + text[text.index("\n", start) + 1 :]


FAMILIES = (
    Family(
        "chatml",
        "tinker-engine/tiny-chat",
        Abilities(control_strings=QWEN_TAGS),
        differences=(CONTROL, EMPTY_SYSTEM, BLANK),
    ),
    Family(
        "llama3",
        "llama3_1",
        Abilities(thinking=0.0, tools=False, control_strings=("<|eot_id|>", "<|start_header_id|>")),
        adapt=without_preamble,
        differences=(CONTROL, LLAMA_TRIM),
    ),
    Family("qwen3", "qwen3", QWEN, differences=(CONTROL, EMPTY_SYSTEM, BLANK)),
    Family(
        "qwen3_disable_thinking",
        "qwen3",
        QWEN_NO_THINKING,
        {"enable_thinking": False},
        (CONTROL, EMPTY_SYSTEM, BLANK),
    ),
    Family(
        "qwen3_instruct",
        "qwen3_instruct",
        QWEN_RARELY_THINKING,
        differences=(CONTROL, EMPTY_SYSTEM, BLANK, INSTRUCT_THINKING),
    ),
    Family("qwen3_5", "qwen3_5", QWEN, differences=(CONTROL, EMPTY_BLOCK, JSON_SCALARS)),
    Family(
        "qwen3_5_disable_thinking",
        "qwen3_5",
        QWEN_NO_THINKING,
        {"enable_thinking": False},
        (CONTROL, JSON_SCALARS),
    ),
    Family("deepseekv3", "deepseek_v3_1", DEEPSEEK, {"thinking": False}, (CONTROL, UNDECLARED)),
    Family(
        "deepseekv3_thinking",
        "deepseek_v3_1",
        DEEPSEEK,
        {"thinking": True},
        (CONTROL, UNDECLARED, DEEPSEEK_AFTER_TOOL),
        adapt=with_thinking,
    ),
    Family(
        "gpt_oss_no_sysprompt",
        "gpt_oss",
        GPT_OSS,
        adapt=without_system,
        differences=(CONTROL, HARMONY_ROUTING, HARMONY_CALLS),
        thinking_field="thinking",
    ),
    *(
        Family(
            f"gpt_oss_{effort}_reasoning",
            "gpt_oss",
            GPT_OSS,
            {"reasoning_effort": effort},
            (CONTROL, HARMONY_DATE, HARMONY_CALLS),
            adapt=without_date,
            thinking_field="thinking",
        )
        for effort in ("low", "medium", "high")
    ),
)


# --- comparing ---------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    kind: str  # "prompt" or "example"
    conversation: Conversation
    ours: list[int]
    theirs: list[int]
    text: str  # of theirs

    @property
    def equal(self) -> bool:
        return self.ours == self.theirs


class Comparison:
    def __init__(self, family: Family, tokenizer: Tokenizer):
        self.family = family
        self.tokenizer = tokenizer
        self.renderer: Renderer = get_renderer(family.renderer, tokenizer)

    def prompt(self, conversation: Conversation) -> Outcome:
        question = conversation.messages[:-1]
        ours = self.renderer.build_generation_prompt(self._ours(question, conversation)).to_ints()
        return self._outcome("prompt", conversation, ours, self._theirs(question, conversation, prompt=True))

    def example(self, conversation: Conversation) -> Outcome:
        messages = self._ours(conversation.messages, conversation)
        ours = self.renderer.build_supervised_example(messages, TrainOnWhat.LAST_ASSISTANT_MESSAGE)[
            0
        ].to_ints()
        theirs = self._theirs(conversation.messages, conversation, prompt=False)
        return self._outcome("example", conversation, ours, theirs)

    def _outcome(self, kind: str, conversation: Conversation, ours: list[int], text: str) -> Outcome:
        theirs = self.tokenizer.encode(text, add_special_tokens=False)
        return Outcome(kind, conversation, ours, theirs, text)

    def _ours(self, messages: Sequence[Message], conversation: Conversation) -> list[Message]:
        if not conversation.tools:
            return list(messages)
        own = messages[0]["role"] == "system"
        system = get_text_content(messages[0]) if own else ""
        prefix = self.renderer.create_conversation_prefix_with_tools(conversation.tools, system)
        return [*prefix, *(messages[1:] if own else messages)]

    def _theirs(self, messages: Sequence[Message], conversation: Conversation, *, prompt: bool) -> str:
        """Nothing, where the template refuses the conversation."""
        plain = [self._plain(message) for message in messages]
        tools = [{"type": "function", "function": tool} for tool in conversation.tools] or None
        if tools and self.family.renderer.startswith("qwen3_5"):
            tools = conversation.tools
        try:
            text = self.tokenizer.apply_chat_template(
                plain, tools=tools, add_generation_prompt=prompt, tokenize=False, **self.family.options
            )
        except TemplateError:
            return ""
        text = self.family.adapt(str(text), messages)
        if not prompt and self.family.renderer.startswith(("qwen", "chatml")):
            text = text.removesuffix("\n")
        return text

    def _plain(self, message: Message) -> dict[str, Any]:
        plain = self.renderer.to_openai_message(message)
        if "reasoning_content" in plain:
            plain[self.family.thinking_field] = plain.pop("reasoning_content")
        if self.family.renderer.startswith("gpt_oss"):
            for call in plain.get("tool_calls", []):
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        return plain


def compare(family: Family, tokenizer: Tokenizer, count: int, seed: int = 0) -> list[Outcome]:
    comparison = Comparison(family, tokenizer)
    outcomes: list[Outcome] = []
    for conversation in conversations(family.abilities, count, seed):
        outcomes += [comparison.prompt(conversation), comparison.example(conversation)]
    return outcomes


def reasons(family: Family, conversation: Conversation) -> list[str]:
    return [difference.name for difference in family.differences if difference.applies(conversation)]


def unexplained(family: Family, outcomes: Sequence[Outcome]) -> list[Outcome]:
    return [o for o in outcomes if not o.equal and not reasons(family, o.conversation)]


def load(name: str, folder: Path | None) -> Tokenizer:
    if "/" in name or folder is None:
        return get_tokenizer(name)
    source = "qwen3" if name == "qwen3_instruct" else name
    tokenizer = get_tokenizer(str(folder / source))
    if name == "qwen3_instruct":  # the same vocabulary, another template
        template = (folder.parent / "templates" / "qwen3_instruct.jinja").read_text()
        tokenizer = _with_template(tokenizer, template)
    return tokenizer


def _with_template(tokenizer: Tokenizer, template: str) -> Tokenizer:
    import copy

    other = copy.deepcopy(tokenizer)
    other.chat_template = template
    return other


# --- the page ----------------------------------------------------------------------------------------------


def page(results: dict[str, list[Outcome]], families: Sequence[Family]) -> str:
    lines = [
        "# Renderers and chat templates",
        "",
        "Every renderer against the chat template of its model, token by token, on conversations of every kind: with",
        "and without a system message, one to three turns, thinking, calls and results of tools, declared tools, empty",
        "and odd text, unicode, text that spells control tokens. Every difference has a stated reason, or the script",
        "that writes this page fails: `python -m scripts.renderer_conformance TOKENIZERS`.",
        "",
        "| renderer | prompts equal | examples equal | differ on purpose |",
        "|---|---|---|---|",
    ]
    for family in families:
        outcomes = results[family.renderer]
        cells = []
        for kind in ("prompt", "example"):
            of_kind = [o for o in outcomes if o.kind == kind]
            cells.append(f"{sum(o.equal for o in of_kind)} of {len(of_kind)}")
        names = Counter(reasons(family, o.conversation)[0] for o in outcomes if not o.equal)
        why = "; ".join(f"{name} ({count})" for name, count in names.most_common()) or "—"
        lines.append(f"| `{family.renderer}` | {cells[0]} | {cells[1]} | {why} |")
    lines += ["", "## Why they differ", ""]
    seen: dict[str, list[str]] = {}
    for family in families:
        for difference in family.differences:
            seen.setdefault(f"**{difference.name}**: {difference.why}", []).append(f"`{family.renderer}`")
    lines += [f"- {text} ({', '.join(names)})" for text, names in seen.items()]
    lines += [
        "- **before the conversation**: `llama3` leaves out the two dates that the template always says first, and the "
        "system message that would hold nothing else; `gpt_oss_no_sysprompt` leaves out Harmony's system message.",
        "- **the thinking of a finished answer**: DeepSeek's template cannot write it. In examples of "
        "`deepseekv3_thinking` it stands after the `<think>` of the prompt (`<think></think>` if there was none).",
        "- **the end of an example**: the newline that ChatML templates write after the last message is not part of an "
        "example: nobody samples it.",
        "- `role_colon` is for models that have no template. `smollm2` is `chatml` with the system message that its "
        "template adds by itself.",
        "",
        "A difference is counted under the first reason that applies.",
    ]
    return "\n".join(lines) + "\n"


# --- frozen cases ------------------------------------------------------------------------------------------


def frozen(family: Family, folder: Path | None) -> dict[str, Any]:
    """What the template says, on a tokenizer of single bytes and this model's control tokens."""
    real = load(family.tokenizer, folder)
    controls = [text for text in real.get_added_vocab() if "reserved" not in text and "holder" not in text]
    small = small_tokenizer(controls, bos=real.bos_token, eos=real.eos_token)
    small.chat_template = real.chat_template
    comparison = Comparison(family, small)
    cases: list[dict[str, Any]] = []
    seen: set[str] = set()
    shortest_first = sorted(conversations(family.abilities, 300, seed=1), key=lambda c: len(c.messages))
    for conversation in shortest_first:
        if len(cases) >= FROZEN_COUNT:
            break
        if reasons(family, conversation) or conversation.features <= seen:
            continue
        prompt, example = comparison.prompt(conversation), comparison.example(conversation)
        if prompt.equal and example.equal:
            seen |= conversation.features
            cases.append(_frozen_case(conversation, prompt, example))
    return {"controls": controls, "bos": real.bos_token, "eos": real.eos_token, "cases": cases}


def _frozen_case(conversation: Conversation, prompt: Outcome, example: Outcome) -> dict[str, Any]:
    """The text of prompt and example in full but for what they share: these cases spell no control tokens."""
    messages = [
        {
            **m,
            **(
                {"tool_calls": [c.model_dump(exclude_defaults=True) for c in m["tool_calls"]]}
                if "tool_calls" in m
                else {}
            ),
        }
        for m in conversation.messages
    ]
    shared = common_length(prompt.text, example.text)
    return {
        "messages": messages,
        "tools": bool(conversation.tools),
        "prompt": prompt.text,
        "shared": shared,
        "example": example.text[shared:],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tokenizers", type=Path, help="a folder of tokenizer folders")
    parser.add_argument("--count", type=int, default=COUNT, help="conversations for each renderer")
    arguments = parser.parse_args()
    results: dict[str, list[Outcome]] = {}
    failed = False
    for family in tqdm(FAMILIES, unit="renderer"):
        tokenizer = load(family.tokenizer, arguments.tokenizers)
        outcomes = results[family.renderer] = compare(family, tokenizer, arguments.count)
        for outcome in unexplained(family, outcomes)[:3]:
            failed = True
            print(f"{family.renderer} {outcome.kind} differs without a reason:", file=sys.stderr)
            print(f"  ours   {tokenizer.decode(outcome.ours)!r}", file=sys.stderr)
            print(f"  theirs {tokenizer.decode(outcome.theirs)!r}", file=sys.stderr)
            if tokenizer.decode(outcome.ours) == tokenizer.decode(outcome.theirs):
                print("  (the same text in other tokens)", file=sys.stderr)
    if failed:
        return 1
    REPORT.write_text(page(results, FAMILIES))
    cases = {family.renderer: frozen(family, arguments.tokenizers) for family in FAMILIES}
    FROZEN.write_text(json.dumps(cases, ensure_ascii=False, separators=(",", ":")) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
