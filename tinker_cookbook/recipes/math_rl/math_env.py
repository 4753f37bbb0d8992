"""Mathematics as an environment: a problem, an answer in a box, and a grader."""

import asyncio
import functools
import random
from collections.abc import Sequence
from typing import ClassVar, Literal

import chz

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes.math_rl.math_grading import Grader, extract_boxed, safe_grade, safe_grade_async
from tinker_cookbook.recipes.math_rl.problems import MathProblem, hold_out, read_problems
from tinker_cookbook.renderers import Message, Renderer, get_renderer
from tinker_cookbook.rl.problem_env import ProblemGroupBuilder, ScoredProblemEnv
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset, RLDatasetBuilder
from tinker_cookbook.tokenizer_utils import get_tokenizer

BOXED = r" Write your answer in \boxed{} format."


class MathEnv(ScoredProblemEnv):
    """Right is what the grader holds to be the same as the reference; the form asked for is a box."""

    def __init__(
        self,
        problem: str,
        answer: str,
        renderer: Renderer,
        convo_prefix: list[Message] | None = None,
        grader: Grader = "sympy",
        timeout: float = 1.0,
        format_coef: float = 0.1,
        suffix: str | None = None,
    ):
        super().__init__(renderer, convo_prefix, format_coef=format_coef)
        self.problem = problem
        self.answer = answer
        self.grader: Grader = grader
        self.timeout = timeout
        self.suffix = self.question_suffix() if suffix is None else suffix

    @classmethod
    def question_suffix(cls) -> str:
        return BOXED

    @staticmethod
    def standard_fewshot_prefix() -> list[Message]:
        """An example of thinking in the open and of the form, for models that were not taught to answer so."""
        return [
            Message(role="user", content=f"How many times is the letter r in strawberry?{BOXED}"),
            Message(
                role="assistant",
                content="Letter by letter: s, t, r (one), a, w, b, e, r (two), r (three), y. "
                r"So the letter r is there three times: \boxed{3}",
            ),
        ]

    def get_question(self) -> str:
        return self.problem + self.suffix

    def get_reference_answer(self) -> str:
        return self.answer

    def check_format(self, sample_str: str) -> bool:
        return _boxed(sample_str) is not None

    def check_answer(self, sample_str: str) -> bool:
        return safe_grade(_boxed(sample_str), self.answer, self.grader, self.timeout)

    async def score(self, sample_str: str) -> float:
        return float(await safe_grade_async(_boxed(sample_str), self.answer, self.grader, self.timeout))


def _boxed(text: str) -> str | None:
    try:
        return extract_boxed(text)
    except ValueError:
        return None


class MathDataset(RLDataset):
    """Groups of problems in an order drawn from the seed; the last batch may be short."""

    def __init__(
        self,
        problems: Sequence[MathProblem],
        batch_size: int,
        group_size: int,
        env_class: "functools.partial[MathEnv]",
        name: str,
        seed: int | None = None,
    ):
        """Without a seed, in the order they have."""
        self._problems = list(problems)
        if seed is not None:
            random.Random(seed).shuffle(self._problems)
        self._batch_size = batch_size
        self._group_size = group_size
        self._env_class = env_class
        self._name = name

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        start = index * self._batch_size
        return [
            ProblemGroupBuilder(
                functools.partial(self._env_class, problem.question, problem.answer),
                self._group_size,
                self._name,
            )
            for problem in self._problems[start : start + self._batch_size]
        ]

    def __len__(self) -> int:
        return -(-len(self._problems) // self._batch_size)


# --- data sets by name ------------------------------------------------------------------------------------


@chz.chz
class MathProblemsBuilder(RLDatasetBuilder):
    """Problems of your own; those below know where theirs are, and read yours as well if you name them."""

    name: ClassVar[str] = "problems"
    suffix: ClassVar[str] = BOXED

    batch_size: int = chz.field(doc="Problems in a batch")
    model_name_for_tokenizer: str = chz.field(doc="The model that answers")
    renderer_name: str = chz.field(doc="How it is asked")
    group_size: int = chz.field(doc="Tries at each problem")
    convo_prefix: list[Message] | Literal["standard"] | None = chz.field(
        default="standard", doc="What is said before each problem; standard: one worked example"
    )
    seed: int = chz.field(default=0, doc="Of the order of the problems")
    train_data: str | None = chz.field(
        default=None,
        doc="File, folder or name on the hub to train on; None: the data set this is named after",
    )
    test_data: str | None = chz.field(default=None, doc="Likewise to test on")
    test_size: int | None = chz.field(
        default=None,
        doc="Problems to test on: so many of test_data, or held out; None: all there are, or none",
    )
    grader: Grader = chz.field(default="sympy", doc="sympy or math_verify")
    timeout: float = chz.field(default=1.0, doc="Seconds in which an answer must be graded")
    format_coef: float = chz.field(default=0.1, doc="What an answer without a box loses")

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        train, test = await asyncio.to_thread(self.train_and_test)
        renderer = get_renderer(
            self.renderer_name,
            await asyncio.to_thread(get_tokenizer, self.model_name_for_tokenizer),
            model_name=self.model_name_for_tokenizer,
        )
        prefix = MathEnv.standard_fewshot_prefix() if self.convo_prefix == "standard" else self.convo_prefix
        env_class = functools.partial(
            MathEnv,
            renderer=renderer,
            convo_prefix=prefix,
            grader=self.grader,
            timeout=self.timeout,
            format_coef=self.format_coef,
            suffix=self.suffix,
        )
        held_out = MathDataset(test, self.batch_size, 1, env_class, self.name) if test else None
        return MathDataset(train, self.batch_size, self.group_size, env_class, self.name, self.seed), held_out

    def train_and_test(self) -> tuple[list[MathProblem], list[MathProblem]]:
        """A question to test on is never trained on, whatever is in the files."""
        train = (
            self._own_train() if self.train_data is None else read_problems((self.train_data, None, "train"))
        )
        if self.test_data is not None:
            test = read_problems((self.test_data, None, "test"))
        elif self.train_data is None:
            test = self._own_test()
        else:
            return hold_out(train, self.test_size, self.seed) if self.test_size else (train, [])
        if not test:
            return hold_out(train, self.test_size, self.seed) if self.test_size else (train, [])
        test = test[: self.test_size] if self.test_size is not None else test
        tested = {problem.question.strip() for problem in test}
        train = [problem for problem in train if problem.question.strip() not in tested]
        if not train:
            raise ConfigurationError("every problem to train on is also one to test on; name other data")
        return train, test

    def _own_train(self) -> list[MathProblem]:
        raise ConfigurationError("there is no data to train on; name some with train_data=my_problems.jsonl")

    def _own_test(self) -> list[MathProblem]:
        return []


@chz.chz
class Gsm8kDatasetBuilder(MathProblemsBuilder):
    """7,473 word problems of primary school, and 1,319 to test on; answers are whole numbers."""

    name: ClassVar[str] = "gsm8k"
    suffix: ClassVar[str] = r" Give the answer as a number without units, inside \boxed{}."

    def _own_train(self) -> list[MathProblem]:
        return read_problems(("openai/gsm8k", "main", "train"))

    def _own_test(self) -> list[MathProblem]:
        return read_problems(("openai/gsm8k", "main", "test"))


@chz.chz
class MathDatasetBuilder(MathProblemsBuilder):
    """MATH: 12,000 problems of competitions, and the MATH-500 to test on, which are among neither."""

    name: ClassVar[str] = "math"
    subjects: ClassVar[tuple[str, ...]] = (
        "algebra",
        "counting_and_probability",
        "geometry",
        "intermediate_algebra",
        "number_theory",
        "prealgebra",
        "precalculus",
    )

    def _own_train(self) -> list[MathProblem]:
        sources = (
            ("EleutherAI/hendrycks_math", subject, split)
            for subject in self.subjects
            for split in ("train", "test")
        )
        return read_problems(*sources)

    def _own_test(self) -> list[MathProblem]:
        return read_problems(("HuggingFaceH4/MATH-500", None, "test"))


@chz.chz
class PolarisDatasetBuilder(MathProblemsBuilder):
    """53,000 hard problems; none are set apart for testing."""

    name: ClassVar[str] = "polaris"

    def _own_train(self) -> list[MathProblem]:
        return read_problems(("POLARIS-Project/Polaris-Dataset-53K", None, "train"))


@chz.chz
class DeepMathDatasetBuilder(MathProblemsBuilder):
    """103,000 hard problems; none are set apart for testing."""

    name: ClassVar[str] = "deepmath"

    def _own_train(self) -> list[MathProblem]:
        return read_problems(("zwhe99/DeepMath-103K", None, "train"))


DATASET_BUILDER_MAP: dict[str, type[MathProblemsBuilder]] = {
    builder.name: builder
    for builder in (
        Gsm8kDatasetBuilder,
        MathDatasetBuilder,
        PolarisDatasetBuilder,
        DeepMathDatasetBuilder,
        MathProblemsBuilder,
    )
}


def get_math_dataset_builder(
    dataset_name: str,
    batch_size: int,
    model_name_for_tokenizer: str,
    renderer_name: str,
    group_size: int,
    seed: int = 0,
) -> RLDatasetBuilder:
    if dataset_name not in DATASET_BUILDER_MAP:
        raise ConfigurationError(
            f"there is no data set {dataset_name!r}; there are {', '.join(DATASET_BUILDER_MAP)}"
        )
    return DATASET_BUILDER_MAP[dataset_name](
        batch_size=batch_size,
        model_name_for_tokenizer=model_name_for_tokenizer,
        renderer_name=renderer_name,
        group_size=group_size,
        seed=seed,
    )
