"""A renderer of bytes, policies that play by rule or fail, and an event loop in which waiting takes no time."""

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from types import SimpleNamespace
from typing import Any, TypeVar

import tinker

from tinker_cookbook.completers import StopCondition, TokenCompleter, TokensWithLogprobs
from tinker_cookbook.renderers import Renderer
from tinker_cookbook.renderers.messages import Message, ParseTermination, get_text_content

T = TypeVar("T")
END = 0  # the byte that ends a message


class _Clock(selectors.DefaultSelector):
    """Instead of waiting, the time goes on."""

    now = 0.0

    def select(self, timeout=None):
        ready = super().select(0)
        if not ready and timeout is None:
            raise AssertionError("everybody waits, and nothing can happen any more")
        if not ready:
            self.now += max(timeout or 0.0, 0.0)
        return ready


class FastLoop(asyncio.SelectorEventLoop):
    def __init__(self):
        self._clock = _Clock()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


def run_fast(main: Coroutine[Any, Any, T]) -> T:
    """To the end, in no time. Fails when a task is left over, or when all wait for each other."""

    async def checked() -> T:
        result = await main
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"left over: {left}"
        return result

    with asyncio.Runner(loop_factory=FastLoop) as runner:
        return runner.run(checked())


def bytes_renderer() -> Renderer:
    """Messages as their bytes, each with one that ends it. Cheap enough for thousands of games."""

    def prompt(messages: list[Message]) -> tinker.ModelInput:
        return tinker.ModelInput.from_ints(
            [byte for message in messages for byte in (*get_text_content(message).encode(), END)]
        )

    def parse(tokens: list[int]) -> tuple[Message, ParseTermination]:
        is_ended = bool(tokens) and tokens[-1] == END
        text = bytes(tokens[:-1] if is_ended else tokens).decode()
        ended = ParseTermination.STOP_SEQUENCE if is_ended else ParseTermination.MALFORMED
        return Message(role="assistant", content=text), ended

    fake: Any = SimpleNamespace(
        build_generation_prompt=prompt,
        parse_response=parse,
        get_stop_sequences=lambda: [END],
        has_extension_property=True,
    )
    return fake


class Policy(TokenCompleter):
    """Answers with what a function makes of the prompt's text."""

    def __init__(self, reply: Callable[[str], Awaitable[str]]):
        self.reply = reply

    async def __call__(
        self, model_input: tinker.ModelInput, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        text = await self.reply(bytes(model_input.to_ints()).decode())
        tokens = [*text.encode(), END]
        return TokensWithLogprobs(tokens, [-1.0] * len(tokens))
