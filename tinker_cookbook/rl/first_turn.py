"""The first prompts of a group, asked together.

The members of a group mostly begin with the same prompt. Asked for in one request, it is sent, read and computed once
for all of them. The members wait for each other, so that the same seed always makes the same requests; one that is
late, or ends without a word, is not waited for.
"""

import asyncio
import logging
from dataclasses import dataclass, field

import tinker

from tinker_cookbook.completers import (
    StopCondition,
    TinkerTokenCompleter,
    TokenCompleter,
    TokensWithLogprobs,
)
from tinker_cookbook.utils.concurrency import cancel_all
from tinker_cookbook.utils.seeds import derive_seed

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 5.0


def episode_is_over(policy: TokenCompleter) -> None:
    """If it ended before it asked for anything, nobody waits for it any more."""
    if isinstance(policy, _Member):
        policy.ended()


def policies_of_group(policy: TokenCompleter, size: int, *, attempt: int = 0) -> list[TokenCompleter]:
    """One for each member. Any callable of the right shape can be a policy, and is then that of all."""
    if not isinstance(policy, TokenCompleter):
        return [policy] * size
    members = [policy.for_rollout(attempt * size + index) for index in range(size)]
    if size == 1 or not isinstance(policy, TinkerTokenCompleter):
        return members
    first_turn = FirstTurn(policy, size)
    return [_Member(member, first_turn, index) for index, member in enumerate(members)]


@dataclass
class _Member(TokenCompleter):
    """Asks its first time with the others, and later by itself."""

    policy: TokenCompleter
    first_turn: "FirstTurn"
    index: int
    _has_asked: bool = False

    async def __call__(
        self, model_input: tinker.ModelInput, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        if self._has_asked:
            return await self.policy(model_input, stop, max_tokens=max_tokens)
        self._has_asked = True
        return await self.first_turn.ask(self.index, _Question(model_input, stop, max_tokens))

    def ended(self) -> None:
        if not self._has_asked:
            self._has_asked = True
            self.first_turn.leave(self.index)


@dataclass(frozen=True)
class _Question:
    model_input: tinker.ModelInput
    stop: StopCondition
    max_tokens: int | None


@dataclass
class _Bundle:
    """Members that ask the same."""

    question: _Question
    first: int  # the first of them, which the seed is made of
    answers: list[asyncio.Future[TokensWithLogprobs]] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    @property
    def is_forsaken(self) -> bool:
        """Nobody waits for the answer."""
        return all(answer.done() for answer in self.answers)


class FirstTurn:
    def __init__(self, policy: TinkerTokenCompleter, size: int):
        self._policy = policy
        self._awaited = set(range(size))
        self._asked: dict[int, tuple[_Question, asyncio.Future[TokensWithLogprobs]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_sent = False
        self._bundles: list[_Bundle] = []

    async def ask(self, index: int, question: _Question) -> TokensWithLogprobs:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[TokensWithLogprobs] = loop.create_future()
        self._asked[index] = (question, answer)
        if self._timer is None:
            self._timer = loop.call_later(PATIENCE_SECONDS, self._lose_patience)
        self.leave(index)
        try:
            return await answer
        finally:
            await cancel_all(bundle.task for bundle in self._bundles if bundle.task and bundle.is_forsaken)

    def leave(self, index: int) -> None:
        """It has asked, or never will."""
        self._awaited.discard(index)
        if self._is_sent or not self._awaited:
            self._send()

    def _lose_patience(self) -> None:
        logger.info(
            "%d of a group's episodes have no first prompt after %g s: the others go on. If they wait for each other, "
            "as players of one game, set members_play_together on their group builder",
            len(self._awaited),
            PATIENCE_SECONDS,
        )
        self._send()

    def _send(self) -> None:
        """All that has been asked so far. Whoever comes later asks alone."""
        self._is_sent = True
        if self._timer is not None:
            self._timer.cancel()
        bundles: list[_Bundle] = []
        for index, (question, answer) in sorted(self._asked.items()):
            bundle = next((each for each in bundles if each.question == question), None)
            if bundle is None:
                bundle = _Bundle(question, index)
                bundles.append(bundle)
            bundle.answers.append(answer)
        self._asked = {}
        for bundle in bundles:
            bundle.task = asyncio.create_task(self._sample(bundle), name="first turn of a group")
        self._bundles += bundles

    async def _sample(self, bundle: _Bundle) -> None:
        question, policy = bundle.question, self._policy
        seed = None if policy.seed is None else derive_seed(policy.seed, "first turn", bundle.first)
        try:
            sampled = await policy.sample(
                question.model_input,
                question.stop,
                count=len(bundle.answers),
                max_tokens=question.max_tokens,
                seed=seed,
            )
        except Exception as error:  # the boundary to the members, each of which raises it
            for answer in bundle.answers:
                if not answer.done():
                    answer.set_exception(error)
            return
        for answer, tokens in zip(bundle.answers, sampled, strict=True):
            if not answer.done():
                answer.set_result(tokens)
