"""Sums, differences or products of two numbers: the first environment to try a model on."""

import asyncio
import functools
import hashlib
import operator
import random
import re
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Literal

import chz

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.renderers import Message, Renderer, get_renderer
from tinker_cookbook.rl.problem_env import ProblemEnv, ProblemGroupBuilder
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset, RLDatasetBuilder
from tinker_cookbook.tasks.arithmetic import last_integer
from tinker_cookbook.tokenizer_utils import get_tokenizer

Operation = Literal["+", "-", "*"]
OPERATIONS: dict[Operation, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}
TEST_SHARE = 5  # one sum in so many is kept for testing


class ArithmeticEnv(ProblemEnv):
    """Right if the last whole number of the reply is the result; a wrong one may be worth something by its digits."""

    def __init__(
        self,
        x: int,
        y: int,
        renderer: Renderer,
        convo_prefix: list[Message] | None = None,
        format_coef: float = 0.1,
        operation: Operation = "+",
        partial_credit: float = 0.0,
        begin_answer: bool = False,
        equation: bool = False,
    ):
        super().__init__(renderer, convo_prefix, format_coef=format_coef)
        self.x = x
        self.y = y
        self.operation: Operation = operation
        self.partial_credit = partial_credit
        self.partly_right = partial_credit > 0
        self.begin_answer = begin_answer
        self.equation = equation

    @property
    def result(self) -> int:
        return OPERATIONS[self.operation](self.x, self.y)

    @staticmethod
    def standard_fewshot_prefix(operation: Operation = "+", *, restate: bool = False) -> list[Message]:
        question, answer = f"4 {operation} 5", str(OPERATIONS[operation](4, 5))
        return [
            Message(role="user", content=f"What is {question}?"),
            Message(role="assistant", content=f"{question} = {answer}" if restate else answer),
        ]

    def get_question(self) -> str:
        return f"What is {self.x} {self.operation} {self.y}?"

    def get_prefill(self) -> str | None:
        return f"{self.x} {self.operation} {self.y} =" if self.begin_answer else None

    def get_reference_answer(self) -> str:
        return str(self.result)

    def check_answer(self, sample_str: str) -> bool:
        return last_integer(sample_str) == self.result

    async def score(self, sample_str: str) -> float:
        found = last_integer(sample_str)
        if found is None or found == self.result:
            return float(found == self.result)
        return self.partial_credit * share_of_digits(found, self.result)

    def check_format(self, sample_str: str) -> bool:
        if not self.equation:
            return last_integer(sample_str) is not None
        sum_ = rf"{self.x}\s*{re.escape(self.operation)}\s*{self.y}"
        return re.fullmatch(rf"\s*{sum_}\s*=\s*-?\d+\.?\s*", sample_str) is not None


def share_of_digits(found: int, wanted: int) -> float:
    """That are right, counted from the ones up; of a number that is too long or too short, of the longer one."""
    pairs = list(zip_longest(reversed(str(found)), reversed(str(wanted))))
    return sum(one == other for one, other in pairs) / len(pairs)


class ArithmeticDataset(RLDataset):
    """Drawn anew for each batch, from the seed and the number of the batch."""

    def __init__(
        self,
        batch_size: int,
        group_size: int,
        n_batches: int,
        env_class: "functools.partial[ArithmeticEnv]",
        *,
        split: str = "train",
        largest: int = 100,
        smallest: int = 0,
        seed: int = 0,
    ):
        self._batch_size = batch_size
        self._group_size = group_size
        self._n_batches = n_batches
        self._env_class = env_class
        self._split = split
        self._largest = largest
        self._smallest = smallest
        self._seed = seed

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        rng = random.Random(f"arithmetic/{self._seed}/{self._split}/{index}")
        return [self._group(rng) for _ in range(self._batch_size)]

    def _group(self, rng: random.Random) -> ProblemGroupBuilder:
        while True:
            x, y = (rng.randint(self._smallest, self._largest) for _ in range(2))
            if is_for_testing(x, y) == (self._split == "test"):
                return ProblemGroupBuilder(
                    functools.partial(self._env_class, x, y), self._group_size, "arithmetic"
                )

    def __len__(self) -> int:
        return self._n_batches


def is_for_testing(x: int, y: int) -> bool:
    """The same for 15 + 27 as for 27 + 15: who has seen one has seen the other."""
    digest = hashlib.sha256(f"{max(x, y)}+{min(x, y)}".encode()).digest()
    return digest[0] % TEST_SHARE == 0


@chz.chz
class ArithmeticDatasetBuilder(RLDatasetBuilder):
    batch_size: int = chz.field(doc="Sums in a batch")
    model_name_for_tokenizer: str = chz.field(doc="The model that answers")
    renderer_name: str = chz.field(doc="How it is asked")
    n_batches: int = chz.field(default=100, doc="Batches to train on")
    group_size: int = chz.field(default=4, doc="Tries at each sum")
    include_fewshot: bool = chz.field(default=True, doc="Show what 4 and 5 give before each question")
    restate: bool = chz.field(
        default=False,
        doc="It is shown as 4 + 5 = 9, as small models know sums from their texts, and not as 9",
    )
    begin_answer: bool = chz.field(
        default=False, doc="The answer to 27 + 15 begins with '27 + 15 =', and the model writes what follows"
    )
    equation: bool = chz.field(
        default=False, doc="Well formed is '27 + 15 = 42' and nothing else; False: whatever has a number"
    )
    system_prompt: str | None = chz.field(default=None, doc="What is said before everything else")
    test_size: int = chz.field(default=100, doc="Sums to test on, none of which is trained on; 0: none")
    smallest: int = chz.field(default=0, doc="Numbers are from this on")
    largest: int = chz.field(default=100, doc="Numbers are up to this")
    operation: Operation = chz.field(default="+", doc="+, - or *")
    seed: int = chz.field(default=0, doc="Of the sums")
    format_coef: float = chz.field(default=0.1, doc="What a reply that is not well formed, or cut off, loses")
    partial_credit: float = chz.field(
        default=0.0,
        doc="What a wrong number is worth if nearly all its digits are right, in proportion to them",
    )

    @chz.validate
    def _check(self) -> None:
        if not 0 <= self.smallest <= self.largest - 9:
            raise ConfigurationError(
                f"from smallest={self.smallest} to largest={self.largest} there are too few sums to hold any out; "
                "largest must be at least 9 more, and smallest at least 0"
            )
        if not 0 <= self.partial_credit < 1:
            raise ConfigurationError(f"partial_credit={self.partial_credit} must be from 0 to below 1")
        if self.equation and self.begin_answer:
            raise ConfigurationError(
                "an answer that is begun is no equation by itself: drop equation or begin_answer"
            )

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        tokenizer = await asyncio.to_thread(get_tokenizer, self.model_name_for_tokenizer)
        renderer = get_renderer(self.renderer_name, tokenizer, model_name=self.model_name_for_tokenizer)
        env_class = functools.partial(
            ArithmeticEnv,
            renderer=renderer,
            convo_prefix=self._prefix() or None,
            format_coef=self.format_coef,
            operation=self.operation,
            partial_credit=self.partial_credit,
            begin_answer=self.begin_answer,
            equation=self.equation,
        )
        dataset = functools.partial(
            ArithmeticDataset,
            env_class=env_class,
            largest=self.largest,
            smallest=self.smallest,
            seed=self.seed,
        )
        test = dataset(self.test_size, 1, 1, split="test") if self.test_size else None
        return dataset(self.batch_size, self.group_size, self.n_batches), test

    def _prefix(self) -> list[Message]:
        before = [] if self.system_prompt is None else [Message(role="system", content=self.system_prompt)]
        if not self.include_fewshot:
            return before
        return before + ArithmeticEnv.standard_fewshot_prefix(self.operation, restate=self.restate)
