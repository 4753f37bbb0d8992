"""The tiny model's training text: conversations made of the cookbook's tasks, without end, from a seed.

Every document is a function of its source and its number alone. Only problems of the train split are used, so that the
test split stays unseen. Most documents are one problem; some chain several, up to the model's whole context.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import tokenizers

from scripts.tiny_chat.chatml import END_OF_TEXT, pieces, with_tools
from tinker_cookbook.tasks import Message, Problem, Split, careless, get_task
from tinker_cookbook.tasks.tools import CALCULATOR, LOOKUP

CONTEXT = 1024

# How often each task comes up: at the very start, afterwards, in the last part; and how often its writer slips there.
# Copying comes first because so much else is made of it, and sums are given the end because they take longest to learn.
FIRST_SHARES: Mapping[str, float] = {
    "arithmetic": 20,
    "chat": 5,
    "copy": 25,
    "reverse": 20,
    "sort": 20,
    "compare": 5,
    "tools": 5,
}
SHARES: Mapping[str, float] = {
    "arithmetic": 25,
    "chat": 12,
    "small_talk": 2,
    "formats": 12,
    "copy": 6,
    "reverse": 9,
    "sort": 10,
    "compare": 6,
    "tools": 5,
    "tictactoe": 3,
    "guess_number": 2,
    "ask_questions": 1,
    "answer_questions": 3,
    "judge_shorter": 2,
    "judge_correct": 3,
}
LATE_SHARES: Mapping[str, float] = {
    "arithmetic": 52,
    "chat": 7,
    "small_talk": 1,
    "formats": 7,
    "copy": 3,
    "reverse": 6,
    "sort": 7,
    "compare": 3,
    "tools": 3,
    "tictactoe": 2,
    "guess_number": 1,
    "ask_questions": 0.5,
    "answer_questions": 2,
    "judge_shorter": 1.5,
    "judge_correct": 6,
}
MISTAKES: Mapping[str, float] = {
    "arithmetic": 0.3,
    "chat": 0.3,
    "small_talk": 0.1,
    "formats": 0.4,
    "copy": 0.4,
    "reverse": 0.3,
    "sort": 0.2,
    "compare": 0.4,
    "tools": 0.33,  # at each of two turns
    "tictactoe": 0.2,
    "guess_number": 0.3,  # at every turn, as in the next one
    "ask_questions": 0.15,
    "answer_questions": 0.15,
    "judge_shorter": 0.28,
    "judge_correct": 0,
}
CHAINED = 0.01  # share of documents that are several problems in one conversation
IDLE_TOOLS = 0.05  # share of other problems in which tools are offered and not needed


@dataclass(frozen=True)
class Document:
    tokens: np.ndarray  # int64, ends with the end-of-text token
    weights: np.ndarray  # float32, of predicting each token from those before it


@dataclass(frozen=True)
class Source:
    """Where documents come from: the same source and number give the same document."""

    seed: int
    split: Split = "train"
    shares: Mapping[str, float] = field(default_factory=lambda: SHARES)
    careless: bool = False  # whether writers slip, as often as MISTAKES says
    prompt_weight: float = 0.0  # in the loss, of a token that the assistant does not write

    def conversation(self, rng: random.Random) -> tuple[Problem, list[Message]]:
        """A problem and its whole conversation."""
        name = rng.choices(list(self.shares), weights=list(self.shares.values()))[0]
        problem = get_task(name).problem(self.split, rng.getrandbits(48))
        return problem, [*problem.prompt, *careless(problem, rng, MISTAKES[name] if self.careless else 0)]

    def messages(self, rng: random.Random, length: int = 0) -> list[Message]:
        """One problem's conversation; with a length in characters, several problems' until it is reached."""
        if not length:
            problem, messages = self.conversation(rng)
            idle = not problem.tools and messages[0]["role"] == "user" and rng.random() < IDLE_TOOLS
            return with_tools(messages, (CALCULATOR, LOOKUP) if idle else problem.tools)
        chain: list[Message] = []
        while sum(len(message["content"]) for message in chain) < length:
            problem, messages = self.conversation(rng)
            if not problem.tools and messages[0]["role"] == "user":
                chain += messages
        return chain

    def document(self, tokenizer: tokenizers.Tokenizer, number: int, *, chained: float = CHAINED) -> Document:
        rng = random.Random(f"document/{self.seed}/{self.split}/{number}")
        length = rng.randrange(100, 2 * CONTEXT) if rng.random() < chained else 0
        return encoded(tokenizer, self.messages(rng, length), self.prompt_weight)

    def texts(self, count: int) -> Iterator[str]:
        """Documents as plain text, for the tokenizer to learn from."""
        for number in range(count):
            messages = self.messages(random.Random(f"text/{self.seed}/{self.split}/{number}"))
            yield "".join(text for text, _ in pieces(messages))


def encoded(
    tokenizer: tokenizers.Tokenizer, messages: Sequence[Message], prompt_weight: float = 0.0
) -> Document:
    """Cut at the context's length, which only the longest chains reach."""
    tokens: list[int] = []
    weights: list[float] = []
    for text, own in [*pieces(messages), (END_OF_TEXT, False)]:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        tokens += ids
        weights += [1.0 if own else prompt_weight] * len(ids)
    return Document(np.array(tokens[:CONTEXT]), np.array(weights[:CONTEXT], dtype=np.float32))


@dataclass(frozen=True)
class Batch:
    tokens_BT: np.ndarray  # inputs, padded on the right
    targets_BT: np.ndarray
    weights_BT: np.ndarray  # 0 where padded


# A batch holds documents of one class of length: little padding, and still several tasks in each.
WIDTHS = (32, 48, 96, 192, 384, CONTEXT)


def batches(
    tokenizer: tokenizers.Tokenizer, source: Source, shard: int, *, size: int, documents: int
) -> list[Batch]:
    """The documents of one shard in batches of about `size` tokens; those that fill no batch are left out."""
    rows: dict[int, list[Document]] = {width: [] for width in WIDTHS}
    for number in range(shard * documents, (shard + 1) * documents):
        one = source.document(tokenizer, number)
        rows[next(width for width in WIDTHS if len(one.tokens) <= width)].append(one)
    found: list[Batch] = []
    for width, filled in rows.items():
        per_batch = max(1, size // width)
        starts = range(0, len(filled) - per_batch + 1, per_batch)
        found += [_padded(filled[start : start + per_batch]) for start in starts]
    random.Random(f"batches/{source.seed}/{shard}").shuffle(found)
    return found


def _padded(rows: Sequence[Document]) -> Batch:
    width = max(len(one.tokens) for one in rows)
    tokens = np.zeros((len(rows), width), dtype=np.int64)
    weights = np.zeros((len(rows), width), dtype=np.float32)
    for row, one in enumerate(rows):
        tokens[row, : len(one.tokens)] = one.tokens
        weights[row, : len(one.tokens)] = one.weights
    return Batch(tokens[:, :-1], tokens[:, 1:], weights[:, 1:])
