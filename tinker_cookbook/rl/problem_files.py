"""Questions with known answers, from a list or from a file of the user's own.

    ProblemFileBuilder(path="mine.jsonl", check="number", model_name_for_tokenizer=..., renderer_name=...)

where each line of the file is `{"question": "What is 2 + 2?", "answer": "4"}`. With `check="my_module:score"` the
reward is what your function `score(reply, answer)` returns.
"""

import asyncio
import contextlib
import functools
import inspect
import random
import re
import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Literal

import chz

from tinker_cookbook.exceptions import ConfigurationError, DataError, DataFormatError, DataValidationError
from tinker_cookbook.renderers import Message, Renderer, get_renderer
from tinker_cookbook.rl.problem_env import ProblemGroupBuilder, ScoredProblemEnv
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset, RLDatasetBuilder
from tinker_cookbook.supervised.rows import Rows, open_rows
from tinker_cookbook.tokenizer_utils import get_tokenizer
from tinker_cookbook.utils.misc_utils import lookup_func

Check = Literal["exact", "number", "contains", "regex"]
Pair = tuple[str, str]  # question, answer

_NUMBER = re.compile(r"(?<![\d.])-?\d+(?:\.\d+)?")


def last_number(text: str) -> Decimal | None:
    """The last number of a text; commas within numbers do not count, and a dash only where no number stands before."""
    found = _NUMBER.findall(re.sub(r"(?<=\d),(?=\d{3})", "", text))
    return Decimal(found[-1]) if found else None


def _same_number(reply: str, answer: str) -> bool:
    return (number := last_number(reply)) is not None and number == last_number(answer)


CHECKS: dict[str, Callable[[str, str], bool]] = {
    "exact": lambda reply, answer: reply.strip() == answer.strip(),
    "number": _same_number,
    "contains": lambda reply, answer: answer.strip().casefold() in reply.casefold(),
    "regex": lambda reply, answer: re.search(answer, reply) is not None,
}
"""Whether a reply is right, given the answer of the file; for `regex` that is a pattern to be found in the reply."""


class QuestionEnv(ScoredProblemEnv):
    def __init__(
        self,
        renderer: Renderer,
        question: str,
        answer: str,
        check: Check | str,
        convo_prefix: list[Message] | None = None,
        format_coef: float = 0.0,
        check_seconds: float = 60.0,
    ):
        """`check` is one of `CHECKS`, or module:function of a function of yours, which has `check_seconds`."""
        super().__init__(renderer, convo_prefix, format_coef)
        self.question = question
        self.answer = answer
        self.check = check
        self.check_seconds = check_seconds
        self.partly_right = check not in CHECKS

    def get_question(self) -> str:
        return self.question

    def check_answer(self, sample_str: str) -> bool:
        return CHECKS[self.check](sample_str, self.answer)

    async def score(self, sample_str: str) -> float:
        if self.check in CHECKS:
            return float(self.check_answer(sample_str))
        function = _own_check(self.check)
        try:
            found = await asyncio.wait_for(_called(function, sample_str, self.answer), self.check_seconds)
        except TimeoutError as error:
            raise TimeoutError(
                f"check={self.check} did not return within check_seconds={self.check_seconds:g}"
            ) from error
        if not isinstance(found, bool | int | float):
            raise TypeError(f"check={self.check} returned {found!r}; a reward is a number, or True or False")
        return float(found)

    def check_format(self, sample_str: str) -> bool:
        """That it says something; that it also ends is seen to already."""
        return bool(sample_str.strip())

    def get_reference_answer(self) -> str:
        return self.answer


async def _called(function: Callable[[str, str], Any], reply: str, answer: str) -> Any:
    """In a thread, so that other episodes go on meanwhile, unless the function itself can wait.

    The thread is a daemon: one whose function never returns does not keep the program from ending.
    """
    if inspect.iscoroutinefunction(function):
        return await function(reply, answer)
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: Exception | None) -> None:
        if outcome.done():  # nobody waits any more
            return
        if error is None:
            outcome.set_result(result)
        else:
            outcome.set_exception(error)

    def work() -> None:
        result, error = None, None
        try:
            result = function(reply, answer)
        except Exception as raised:  # the boundary to the user's code: it is raised where the reply is scored
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop may have ended meanwhile
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, daemon=True).start()
    return await outcome


def _own_check(path: str) -> Callable[[str, str], Any]:
    try:
        function = lookup_func(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"check={path}: {error}. It must be {', '.join(CHECKS)}, or module:function of a function (reply, answer) "
            "that returns the reward, in a module that Python finds from the folder you are in"
        ) from error
    if not callable(function):
        raise ConfigurationError(f"check={path} is no function")
    return function


@chz.chz
class QuestionAnswerBuilder(RLDatasetBuilder):
    """What lists and files share: a subclass says where the pairs are."""

    model_name_for_tokenizer: str = chz.field(doc="Model whose tokenizer is used")
    renderer_name: str = chz.field(doc="How conversations are written")
    check: str = chz.field(
        default="exact",
        doc="How replies are checked: exact, number, contains, regex, or module:function of (reply, answer)",
    )
    check_seconds: float = chz.field(
        default=60.0, doc="Time for a function of your own; then the try has failed"
    )
    system_prompt: str | None = chz.field(default=None, doc="Said before each question")
    batch_size: int = chz.field(default=16, doc="Groups of a batch, each of one question")
    group_size: int = chz.field(default=16, doc="Tries at each question")
    n_epochs: int = chz.field(default=1, doc="Times that all questions come, each time in another order")
    test_size: int = chz.field(default=0, doc="Questions held out, each tried once")
    seed: int = chz.field(default=0, doc="Of the order, and of what is held out")
    format_coef: float = chz.field(
        default=0.0, doc="Taken off the reward of a reply that is empty or has no end"
    )
    dataset_name: str = chz.field(default="problems", doc="Under which the metrics are reported")

    @chz.validate
    def _check_fields(self) -> None:
        for name in ("batch_size", "group_size", "n_epochs"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name}={getattr(self, name)} must be at least 1")
        if self.test_size < 0:
            raise ConfigurationError(f"test_size={self.test_size} is negative; 0 holds nothing out")
        if self.check not in CHECKS:
            _own_check(self.check)

    @abstractmethod
    def read_pairs(self) -> Sequence[Pair]:
        """All of them, trained on and held out."""

    def read_test_pairs(self) -> Sequence[Pair] | None:
        """Those to be tested on, if they are kept apart; None: `test_size` of the others."""
        return None

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        pairs, test_pairs = list(self.read_pairs()), self.read_test_pairs()
        self._check_answers([*pairs, *(test_pairs or [])])
        if test_pairs is None:
            random.Random(self.seed).shuffle(pairs)
            test_pairs, pairs = pairs[: self.test_size], pairs[self.test_size :]
        if not pairs:
            raise DataValidationError(f"test_size={self.test_size} leaves no question to train on")
        name = self.model_name_for_tokenizer
        renderer = get_renderer(self.renderer_name, get_tokenizer(name), model_name=name)
        train = _QuestionDataset(self, renderer, pairs, self.batch_size, self.group_size, self.n_epochs)
        if not test_pairs:
            return train, None
        return train, _QuestionDataset(self, renderer, test_pairs, len(test_pairs), 1, 1)

    def _check_answers(self, pairs: Sequence[Pair]) -> None:
        """An answer that no reply can match would be trained on for nothing."""
        for question, answer in pairs:
            if self.check == "number" and last_number(answer) is None:
                raise DataValidationError(
                    f"check=number, and the answer to {question!r} has no number: {answer!r}"
                )
            if self.check == "regex":
                try:
                    re.compile(answer)
                except re.error as error:
                    raise DataValidationError(
                        f"check=regex, and the answer to {question!r} is none: {error}"
                    ) from error


@chz.chz
class ProblemListBuilder(QuestionAnswerBuilder):
    pairs: list[Pair] = chz.field(doc="Questions with their answers")

    def read_pairs(self) -> Sequence[Pair]:
        if not self.pairs:
            raise DataValidationError("pairs is empty; give at least one question with its answer")
        return self.pairs


@chz.chz
class ProblemFileBuilder(QuestionAnswerBuilder):
    """JSONL, JSON, CSV or Parquet with a column for the question and one for the answer, or such data of the hub."""

    path: str = chz.field(doc="A file, a folder of files, or the name of a Hugging Face data set")
    question_field: str = chz.field(default="question", doc="Column with the question")
    answer_field: str = chz.field(default="answer", doc="Column with the answer")
    test_path: str | None = chz.field(default=None, doc="Where held-out questions are, instead of test_size")
    subset: str | None = chz.field(default=None, doc="Of a Hugging Face data set: its configuration")
    split: str = chz.field(default="train", doc="Of a Hugging Face data set: its split")
    test_split: str | None = chz.field(
        default=None, doc="Of a Hugging Face data set: the split that is held out, instead of test_size"
    )

    @chz.validate
    def _check_test(self) -> None:
        if self.test_size and (self.test_path or self.test_split):
            raise ConfigurationError("test_path or test_split, and test_size: give one way to hold out")

    def read_pairs(self) -> Sequence[Pair]:
        return self._read(self.path, self.split)

    def read_test_pairs(self) -> Sequence[Pair] | None:
        if not (self.test_path or self.test_split):
            return None
        return self._read(self.test_path or self.path, self.test_split or self.split)

    def _read(self, path: str, split: str) -> list[Pair]:
        rows = open_rows(path, subset=self.subset, split=split)
        return [self._pair(rows, number) for number in range(len(rows))]

    def _pair(self, rows: Rows, number: int) -> Pair:
        try:
            row = rows[number]
        except DataError as error:
            raise DataFormatError(f"{rows.where(number)}: {error}") from error
        needed = [self.question_field, self.answer_field]
        if self.check not in CHECKS:
            needed.pop()  # a function of one's own may do without
        for field in needed:
            if row.get(field) is None:
                raise DataFormatError(
                    f"{rows.where(number)} has no {field!r}; it has: {', '.join(map(str, row))}. Name the columns with "
                    "question_field= and answer_field="
                )
        answer = row.get(self.answer_field)
        return str(row[self.question_field]), "" if answer is None else str(answer)


class _QuestionDataset(RLDataset):
    """A batch depends on the seed and its index alone. The last one of an epoch is what is left."""

    def __init__(
        self,
        config: QuestionAnswerBuilder,
        renderer: Renderer,
        pairs: Sequence[Pair],
        batch_size: int,
        group_size: int,
        n_epochs: int,
    ):
        self._config = config
        self._renderer = renderer
        self._pairs = pairs
        self._batch_size = batch_size
        self._group_size = group_size
        self._n_epochs = n_epochs

    @property
    def _batches_of_epoch(self) -> int:
        return -(-len(self._pairs) // self._batch_size)

    def __len__(self) -> int:
        return self._batches_of_epoch * self._n_epochs

    def get_batch(self, index: int) -> list[EnvGroupBuilder]:
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        epoch, place = divmod(index, self._batches_of_epoch)
        order = random.Random(f"{self._config.seed}/{epoch}").sample(
            range(len(self._pairs)), len(self._pairs)
        )
        numbers = order[place * self._batch_size : (place + 1) * self._batch_size]
        return [self._group(*self._pairs[number]) for number in numbers]

    def _group(self, question: str, answer: str) -> EnvGroupBuilder:
        config = self._config
        prefix = [Message(role="system", content=config.system_prompt)] if config.system_prompt else None
        env = functools.partial(
            QuestionEnv,
            self._renderer,
            question,
            answer,
            config.check,
            prefix,
            config.format_coef,
            config.check_seconds,
        )
        return ProblemGroupBuilder(env, self._group_size, config.dataset_name)
