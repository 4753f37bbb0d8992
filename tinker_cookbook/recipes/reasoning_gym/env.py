"""Any task of reasoning-gym, or several mixed, as environments. The reward is the package's own score of the answer."""

import asyncio
import difflib
import functools
import itertools
import json
import logging
import random
from collections.abc import Mapping, Sequence
from typing import Any

import chz

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes.bounded_calls import (
    CallFailedError,
    CallTimeoutError,
    CallUnavailableError,
    shared_calls,
)
from tinker_cookbook.recipes.reasoning_gym.extraction import INSTRUCTIONS, Extraction, extract_answer
from tinker_cookbook.renderers import Renderer, get_renderer
from tinker_cookbook.rl.problem_env import ProblemGroupBuilder, ScoredProblemEnv
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset, RLDatasetBuilder
from tinker_cookbook.tokenizer_utils import get_tokenizer

logger = logging.getLogger(__name__)

SCORE = "tinker_cookbook.recipes.reasoning_gym.scoring:score"
SPLIT_DISTANCE = (
    2**30
)  # between the seeds to train and to test on: problem i of a data set has its seed plus i
SEED_DISTANCE = 1_000_003  # between those of one seed and of the next
TEST_DRAWS = 4  # problems drawn for each to test on, since some are the same
MOST_REDRAWS = 50  # for a problem that is also one to test on


class ReasoningGymEnv(ScoredProblemEnv):
    partly_right = True

    def __init__(
        self,
        task: str,
        config: str,
        entry: dict[str, Any],
        renderer: Renderer,
        extraction: Extraction = "last_line",
        timeout: float = 5.0,
        format_coef: float = 0.0,
    ):
        """`config`: the options of the task, as JSON."""
        super().__init__(renderer, format_coef=format_coef)
        self.task = task
        self.config = config
        self.entry = entry
        self.extraction: Extraction = extraction
        self.timeout = timeout

    def get_question(self) -> str:
        return f"{self.entry['question']}\n{INSTRUCTIONS[self.extraction]}".strip()

    def get_reference_answer(self) -> str:
        return str(self.entry["answer"])

    def check_format(self, sample_str: str) -> bool:
        return extract_answer(sample_str, self.extraction) is not None

    def check_answer(self, sample_str: str) -> bool:
        answer = extract_answer(sample_str, self.extraction)
        if answer is None:
            return False
        try:
            score = shared_calls().call(SCORE, *self._arguments(answer), timeout=self.timeout)
        except (CallTimeoutError, CallFailedError, CallUnavailableError) as error:
            return self._no_score(error, answer) >= 1
        return score >= 1

    async def score(self, sample_str: str) -> float:
        """An answer that the package fails on, or takes too long for, has no score: what a model writes ends no run."""
        answer = extract_answer(sample_str, self.extraction)
        if answer is None:
            return 0.0
        try:
            score = await shared_calls().call_async(SCORE, *self._arguments(answer), timeout=self.timeout)
        except (CallTimeoutError, CallFailedError, CallUnavailableError) as error:
            return self._no_score(error, answer)
        return min(1.0, max(0.0, score)) if score == score else 0.0  # NaN is no score

    def _arguments(self, answer: str) -> tuple[str, str, str, dict[str, Any]]:
        return self.task, self.config, answer, self.entry

    def _no_score(self, error: Exception, answer: str) -> float:
        if isinstance(error, CallUnavailableError):
            raise error
        logger.warning("scored 0: %s (task %s, answer %.80r)", error, self.task, answer)
        return 0.0


# --- data sets --------------------------------------------------------------------------------------------


class TaskProblems:
    """The problems of one task, by number."""

    def __init__(self, task: str, config: Mapping[str, Any], *, train_size: int, test_size: int, seed: int):
        self.task = task
        self.config = json.dumps(dict(config), sort_keys=True)
        first = seed * SEED_DISTANCE % SPLIT_DISTANCE
        self._train_size = train_size
        self._train = _create(task, config, train_size, first)
        self._test = _create(task, config, test_size * TEST_DRAWS, first + SPLIT_DISTANCE)
        self._test_size = test_size
        self._tested: set[str] = set()

    def hold_out(self) -> list[dict[str, Any]]:
        """Different problems to test on, which `to_train_on` leaves out. Fewer if the task has no more."""
        count = self._test_size
        found: dict[str, dict[str, Any]] = {}
        for index in range(count * TEST_DRAWS):
            if len(found) == count:
                break
            entry = self._test[index]
            found.setdefault(entry["question"], entry)
        if len(found) < count:
            logger.warning("%s: only %d different problems to test on, not %d", self.task, len(found), count)
        self._tested = set(found)
        return list(found.values())

    def to_train_on(self, index: int, redraw: random.Random) -> dict[str, Any]:
        """Problem number `index`; another, drawn at random, if it is one to test on."""
        for _ in range(MOST_REDRAWS):
            entry = self._train[index]
            if entry["question"] not in self._tested:
                return entry
            index = redraw.randrange(self._train_size)
        raise ConfigurationError(
            f"nearly every problem of {self.task} is among the {len(self._tested)} to test on; lower test_size, or "
            "give the task options with which it has more problems"
        )


def _create(task: str, config: Mapping[str, Any], size: int, seed: int) -> Any:
    """Most tasks make a problem when it is asked for, and some all of them at once."""
    package = load_package()
    if task not in package.factory.DATASETS:
        known = sorted(package.factory.DATASETS)
        near = difflib.get_close_matches(task, known, n=5) or known
        raise ConfigurationError(f"reasoning-gym has no task {task!r}; it has {', '.join(near)}")
    try:
        return package.create_dataset(task, size=max(1, size), seed=seed, **config)
    except (TypeError, AssertionError, ValueError) as error:
        raise ConfigurationError(
            f"{task} does not take the options {json.dumps(dict(config))}: {error}"
        ) from error


def load_package() -> Any:
    try:
        import reasoning_gym  # pyright: ignore[reportMissingImports]
        import reasoning_gym.factory  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "these tasks are those of the package reasoning-gym; type: pip install reasoning-gym"
        ) from error
    return reasoning_gym


class ReasoningGymDataset(RLDataset):
    """Which task a problem is of is drawn by weight, the same for the same seed."""

    def __init__(
        self,
        sources: Sequence[TaskProblems],
        weights: Sequence[float],
        env_class: "functools.partial[ReasoningGymEnv]",
        *,
        batch_size: int,
        group_size: int,
        n_batches: int,
        seed: int,
    ):
        self._sources = sources
        self._env_class = env_class
        self._batch_size = batch_size
        self._group_size = group_size
        self._n_batches = n_batches
        self._seed = seed
        rng = random.Random(f"tasks/{seed}")
        self._task_of = rng.choices(range(len(sources)), weights, k=batch_size * n_batches)

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        return [self._group(index * self._batch_size + i) for i in range(self._batch_size)]

    def _group(self, number: int) -> EnvGroupBuilder:
        source = self._sources[self._task_of[number]]
        entry = source.to_train_on(number, random.Random(f"redraw/{self._seed}/{number}"))
        return group_of(source, entry, self._env_class, self._group_size)

    def __len__(self) -> int:
        return self._n_batches


def group_of(
    source: TaskProblems,
    entry: dict[str, Any],
    env_class: "functools.partial[ReasoningGymEnv]",
    group_size: int,
) -> EnvGroupBuilder:
    thunk = functools.partial(env_class, source.task, source.config, entry)
    return ProblemGroupBuilder(thunk, group_size, source.task)


class HeldOutDataset(RLDataset):
    def __init__(self, groups: Sequence[EnvGroupBuilder]):
        self._groups = list(groups)

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        return self._groups

    def __len__(self) -> int:
        return 1


@chz.chz
class ReasoningGymDatasetBuilder(RLDatasetBuilder):
    task: str = chz.field(
        default="chain_sum", doc="A task, or several with their weights: chain_sum:2,products:1,syllogism"
    )
    config: dict[str, Any] = chz.field(
        default_factory=dict, doc="Options of the task; of several, by the name of each: {'products': {...}}"
    )
    model_name_for_tokenizer: str = chz.field(doc="The model that answers")
    renderer_name: str = chz.field(doc="How it is asked")
    batch_size: int = chz.field(default=16, doc="Problems in a batch")
    group_size: int = chz.field(default=8, doc="Tries at each problem")
    n_batches: int = chz.field(default=50, doc="Batches to train on")
    test_size: int = chz.field(default=100, doc="Problems of each task to test on, none trained on; 0: none")
    seed: int = chz.field(default=0, doc="Of the problems")
    extraction: Extraction = chz.field(
        default="last_line", doc="Where the answer is: last_line, last_number, tag, boxed or whole"
    )
    timeout: float = chz.field(default=5.0, doc="Seconds in which an answer must be scored")
    format_coef: float = chz.field(default=0.0, doc="What a reply without an answer, or cut off, loses")

    @chz.validate
    def _check(self) -> None:
        weights = parse_tasks(self.task)
        if len(weights) > 1 and (unknown := set(self.config) - set(weights)):
            raise ConfigurationError(
                f"with several tasks, config is by task; {', '.join(sorted(unknown))} is none of {', '.join(weights)}"
            )
        if min(self.batch_size, self.group_size, self.n_batches) < 1:
            raise ConfigurationError("batch_size, group_size and n_batches must be at least 1")

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        weights = parse_tasks(self.task)
        sources = [
            await asyncio.to_thread(
                TaskProblems,
                task,
                self._options(task, weights),
                train_size=self.batch_size * self.n_batches,
                test_size=self.test_size,
                seed=self.seed,
            )
            for task in weights
        ]
        tokenizer = await asyncio.to_thread(get_tokenizer, self.model_name_for_tokenizer)
        env_class = functools.partial(
            ReasoningGymEnv,
            renderer=get_renderer(self.renderer_name, tokenizer, model_name=self.model_name_for_tokenizer),
            extraction=self.extraction,
            timeout=self.timeout,
            format_coef=self.format_coef,
        )
        test = await asyncio.to_thread(self._held_out, sources, env_class)
        train = ReasoningGymDataset(
            sources,
            list(weights.values()),
            env_class,
            batch_size=self.batch_size,
            group_size=self.group_size,
            n_batches=self.n_batches,
            seed=self.seed,
        )
        return train, test

    def _options(self, task: str, weights: Mapping[str, float]) -> dict[str, Any]:
        return self.config if len(weights) == 1 else self.config.get(task, {})

    def _held_out(
        self, sources: Sequence[TaskProblems], env_class: "functools.partial[ReasoningGymEnv]"
    ) -> RLDataset | None:
        if not self.test_size:
            return None
        groups = [
            [group_of(source, entry, env_class, 1) for entry in source.hold_out()] for source in sources
        ]
        return HeldOutDataset(list(itertools.chain.from_iterable(groups)))


def parse_tasks(text: str) -> dict[str, float]:
    """`a:2,b` as {a: 2, b: 1}."""
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, _, weight = part.strip().partition(":")
        try:
            weights[name] = float(weight or 1)
        except ValueError as error:
            raise ConfigurationError(f"{weight!r} is no weight; write task=chain_sum:2,products:1") from error
        if not name or not 0 < weights[name] < float("inf"):
            raise ConfigurationError(f"task={text!r}: each task has a name and a positive weight")
    return weights
