"""A judge for tests whose verdicts are plain to see, and a policy that says what it is told to."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tests.tinker_cookbook.rl.tiny import text_of, tokens_of
from tinker_cookbook.preference.types import Comparison, PreferenceModel
from tinker_cookbook.renderers.messages import Message

Score = Callable[[str, str], float]


def comparison(prompt: str, first: str, second: str = "unused") -> Comparison:
    return Comparison(
        [Message(role="user", content=prompt)],
        [Message(role="assistant", content=first)],
        [Message(role="assistant", content=second)],
    )


def longer(first: str, second: str) -> float:
    return float((len(second) > len(first)) - (len(second) < len(first)))


class TextJudge(PreferenceModel):
    """Scores the two texts; answers when `together` questions are open, which shows that they are asked at once."""

    def __init__(self, score: Score = longer, together: int = 1):
        self.score = score
        self.together = together
        self.asked: list[Comparison] = []
        self._enough = asyncio.Event()

    async def __call__(self, comparison: Comparison) -> float:
        self.asked.append(comparison)
        if len(self.asked) >= self.together:
            self._enough.set()
        await asyncio.wait_for(self._enough.wait(), 5)
        first, second = (
            str(side[-1]["content"]) for side in (comparison.completion_A, comparison.completion_B)
        )
        return self.score(first, second)


class Policy:
    """A sampling client that answers by what the prompt has in it."""

    def __init__(self, answers: dict[str, str]):
        self.answers = answers
        self.params: list[Any] = []

    async def sample_async(self, prompt: Any, num_samples: int, sampling_params: Any) -> Any:
        assert num_samples == 1
        self.params.append(sampling_params)
        asked = text_of(prompt.to_ints())
        answer = next(answer for word, answer in self.answers.items() if word in asked)
        return SimpleNamespace(sequences=[SimpleNamespace(tokens=tokens_of(answer), stop_reason="stop")])
