"""The small tasks of `tinker_cookbook.tasks` as environments: the reward is 1 when the problem's own check is passed.

A problem reads and writes plain text with thinking and tool calls inline, as a model does. It is therefore given what
the model wrote, and not what a parser made of it; and the next prompt goes on from the very tokens that were sampled,
so that a call that is no JSON stays in the conversation as it was written.
"""

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import chz
import tinker

from tinker_cookbook.completers import StopCondition
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.renderers import Message, Renderer, get_renderer
from tinker_cookbook.renderers.encoding import decode_exactly
from tinker_cookbook.renderers.gpt_oss import GptOssRenderer
from tinker_cookbook.renderers.messages import ToolSpec
from tinker_cookbook.renderers.stops import split_at_stop
from tinker_cookbook.renderers.tool_formats import JsonToolCalls
from tinker_cookbook.rl.message_env import EnvFromMessageEnv, MessageEnv, MessageStepResult
from tinker_cookbook.rl.types import (
    Action,
    ActionExtra,
    Env,
    EnvGroupBuilder,
    InitialObservationOverflow,
    Metrics,
    RLDataset,
    RLDatasetBuilder,
    StepResult,
)
from tinker_cookbook.tasks import TASKS, Problem, Split, Task
from tinker_cookbook.tokenizer_utils import get_tokenizer

_FAILED: Metrics = {"correct": 0.0, "format": 0.0}


class TaskMessageEnv(MessageEnv):
    """One problem from its prompt to its end. Nothing is rewarded before."""

    def __init__(self, problem: Problem, renderer: Renderer, *, format_coef: float = 0.0):
        self.problem = problem
        self.format_coef = format_coef
        self.written = ""  # the coming reply as the model wrote it
        self.replies: list[str] = []
        self._conversation = opening_messages(problem, renderer)

    async def initial_observation(self) -> list[Message]:
        return self._conversation

    async def step(self, message: Message) -> MessageStepResult:
        self.replies.append(self.written)
        self._conversation = [*self._conversation, message]
        heard = self.problem.respond(self.replies)
        if heard is not None:
            self._conversation.append(Message(role=heard["role"], content=heard["content"]))
            return MessageStepResult(0.0, False, self._conversation)
        correct = float(self.problem.check(self.replies))
        is_formed = float(self.problem.well_formed(self.replies))
        return MessageStepResult(
            reward=correct + self.format_coef * (is_formed - 1),
            episode_done=True,
            next_messages=[],
            metrics={"correct": correct, "format": is_formed},
            logs={"problem": self.problem.key},
        )


def opening_messages(problem: Problem, renderer: Renderer) -> list[Message]:
    """The prompt, with the tools told as the renderer's family tells of them."""
    messages = [Message(role=message["role"], content=message["content"]) for message in problem.prompt]
    if not problem.tools:
        return messages
    tools = getattr(renderer, "tools", None)
    if not (isinstance(tools, JsonToolCalls) and tools.open == "<tool_call>"):
        raise ConfigurationError(
            f"problems with tools read calls as <tool_call>{{...}}</tool_call>, which {type(renderer).__name__} does "
            "not write; use a renderer that does (chatml, qwen3_instruct) or a task without tools"
        )
    own_system = str(messages.pop(0)["content"]) if messages[0]["role"] == "system" else ""
    specs = [ToolSpec(**spec) for spec in problem.tools]
    return [*renderer.create_conversation_prefix_with_tools(specs, own_system), *messages]


class TaskEnv(EnvFromMessageEnv):
    """A reply that was cut off or did not end as it must ends the problem, as neither right nor well-formed."""

    def __init__(
        self,
        renderer: Renderer,
        problem: Problem,
        *,
        format_coef: float = 0.0,
        max_trajectory_tokens: int | None = None,
        max_generation_tokens: int | None = None,
    ):
        if isinstance(renderer, GptOssRenderer):
            raise ConfigurationError(
                "the tasks read replies as they were written, and those of gpt-oss are divided into channels; use "
                "another model, or an env of your own that reads the parsed message"
            )
        self._episode = TaskMessageEnv(problem, renderer, format_coef=format_coef)
        self._action: Action = []
        super().__init__(
            renderer,
            self._episode,
            failed_parse_reward=-format_coef,
            context_overflow_reward=-format_coef,
            max_trajectory_tokens=max_trajectory_tokens,
            max_generation_tokens=max_generation_tokens,
        )

    async def initial_observation(
        self,
    ) -> tuple[tinker.ModelInput, StopCondition] | InitialObservationOverflow:
        first = await super().initial_observation()
        if isinstance(first, InitialObservationOverflow):
            return InitialObservationOverflow(first.reward, _FAILED | first.metrics, first.logs)
        return first

    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        self._action = action
        self._episode.written = text_as_written(self.renderer, action)
        result = await super().step(action, extra=extra)
        if result.episode_done:
            result.metrics = _FAILED | result.metrics
        return result

    async def _render(self, messages: list[Message]) -> tinker.ModelInput:
        # Short text: a thread for it would cost more than it frees.
        rendered = self.renderer.build_generation_prompt(messages)
        stop = self._renderer_stop
        if not self._action or not self.renderer.has_extension_property or not isinstance(stop[0], int):
            return rendered
        return extended(self._prompt, self._action, rendered, end=stop[0])


def extended(
    prompt: tinker.ModelInput, action: Action, rendered: tinker.ModelInput, *, end: int
) -> tinker.ModelInput:
    """The prompt, what was sampled after it, and of `rendered` what comes after that message.

    Each message has one `end`, in `prompt` as in `rendered`, since no text of anybody's becomes a control token.
    """
    before, tokens = prompt.to_ints(), rendered.to_ints()
    ends = [i for i, token in enumerate(tokens) if token == end]
    return tinker.ModelInput.from_ints([*before, *action, *tokens[ends[before.count(end)] + 1 :]])


def text_as_written(renderer: Renderer, action: Action) -> str:
    """Up to where it ends; a think block that the prompt had opened is opened here."""
    stops = renderer.get_stop_sequences()
    end_of_text = getattr(renderer.tokenizer, "eos_token_id", None)
    ends = [token for token in (*stops, end_of_text) if isinstance(token, int)]
    tokens, _ = split_at_stop(action, ends)
    text = decode_exactly(renderer.tokenizer, tokens)
    for stop in stops:
        if isinstance(stop, str):
            text = text.partition(stop)[0]
    is_open = re.search(r"</?think>", text)
    return f"<think>{text}" if is_open is not None and is_open.group() == "</think>" else text


# --- data sets --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskGroupBuilder(EnvGroupBuilder):
    """So many tries at one problem."""

    task_name: str
    problem: Problem
    renderer: Renderer
    num_envs: int
    format_coef: float = 0.0
    max_trajectory_tokens: int | None = None
    max_generation_tokens: int | None = None

    async def make_envs(self) -> Sequence[Env]:
        return [
            TaskEnv(
                self.renderer,
                self.problem,
                format_coef=self.format_coef,
                max_trajectory_tokens=self.max_trajectory_tokens,
                max_generation_tokens=self.max_generation_tokens,
            )
            for _ in range(self.num_envs)
        ]

    def logging_tags(self) -> list[str]:
        return [self.task_name]


@chz.chz
class TaskRLDatasetBuilder(RLDatasetBuilder):
    """Problems of one task. They never end, and problem number i of a seed is the same on every machine."""

    task: str = chz.field(doc=f"One of {', '.join(TASKS)}")
    model_name_for_tokenizer: str = chz.field(doc="Model whose tokenizer is used")
    renderer_name: str = chz.field(doc="How conversations are written")
    batch_size: int = chz.field(default=16, doc="Groups of a batch, each of one problem")
    group_size: int = chz.field(default=16, doc="Tries at each problem")
    n_batches: int = chz.field(default=50, doc="Batches to train on")
    test_size: int = chz.field(default=200, doc="Held-out problems, each tried once; 0: none")
    seed: int = chz.field(default=0, doc="Of which problems come")
    format_coef: float = chz.field(default=0.0, doc="Taken off the reward of a reply without the asked form")
    task_options: dict[str, Any] = chz.field(
        default_factory=dict, doc="For the task's constructor: {'think': 0.0}"
    )
    max_trajectory_tokens: int | None = chz.field(
        default=None, doc="Tokens of a conversation, beyond which it ends as failed; None: no limit here"
    )
    max_generation_tokens: int | None = chz.field(
        default=None, doc="Tokens to keep free for the next reply within max_trajectory_tokens"
    )

    @chz.validate
    def _check(self) -> None:
        for name in ("batch_size", "group_size", "n_batches"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name}={getattr(self, name)} must be at least 1")
        if self.test_size < 0:
            raise ConfigurationError(f"test_size={self.test_size} is negative; 0 holds nothing out")

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        task = self._task()
        name = self.model_name_for_tokenizer
        renderer = get_renderer(self.renderer_name, get_tokenizer(name), model_name=name)
        TaskEnv(
            renderer, task.problem("train", 0, seed=self.seed)
        )  # says now what it would say in every rollout
        train = _TaskDataset(self, task, renderer, "train", self.batch_size, self.group_size, self.n_batches)
        if not self.test_size:
            return train, None
        return train, _TaskDataset(self, task, renderer, "test", self.test_size, 1, 1)

    def _task(self) -> Task[Problem]:
        if self.task not in TASKS:
            raise ConfigurationError(f"there is no task {self.task!r}; tasks are: {', '.join(TASKS)}")
        known = list(inspect.signature(TASKS[self.task]).parameters)
        if unknown := set(self.task_options) - set(known):
            raise ConfigurationError(
                f"the task {self.task} has no option {', '.join(sorted(unknown))}; it has: {', '.join(known) or 'none'}"
            )
        try:
            return TASKS[self.task](**self.task_options)
        except ValueError as error:
            raise ConfigurationError(f"task_options of {self.task}: {error}") from error


class _TaskDataset(RLDataset):
    def __init__(
        self,
        config: TaskRLDatasetBuilder,
        task: Task[Problem],
        renderer: Renderer,
        split: Split,
        batch_size: int,
        group_size: int,
        n_batches: int,
    ):
        self._config = config
        self._task = task
        self._renderer = renderer
        self._split: Split = split
        self._batch_size = batch_size
        self._group_size = group_size
        self._n_batches = n_batches

    def __len__(self) -> int:
        return self._n_batches

    def get_batch(self, index: int) -> list[EnvGroupBuilder]:
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        start = index * self._batch_size
        return [self._group(number) for number in range(start, start + self._batch_size)]

    def _group(self, number: int) -> EnvGroupBuilder:
        config = self._config
        return TaskGroupBuilder(
            task_name=config.task,
            problem=self._task.problem(self._split, number, seed=config.seed),
            renderer=self._renderer,
            num_envs=self._group_size,
            format_coef=config.format_coef,
            max_trajectory_tokens=config.max_trajectory_tokens,
            max_generation_tokens=config.max_generation_tokens,
        )
