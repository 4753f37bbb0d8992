"""What happens around the sampling: clients that go away, engines that fail. The engine is a fake of few lines."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from starlette.applications import Starlette

from tests.tinker_engine.api.support import serving, someone
from tinker_engine.api.openai import Delta, Generation, ServedModel, openai_routes
from tinker_engine.api.openai.stream import merge
from tinker_engine.errors import EngineError, InputError, ModelError, NonFiniteError
from tinker_engine.model import tiny
from tinker_engine.model.tokenizer import Tokenizer

Script = Callable[[Generation], AsyncGenerator[Delta, None]]
SERVED = ServedModel(tiny.NAME, tiny.FOLDER, 0, "someone")
ASKED: Any = {"model": tiny.NAME, "messages": [{"role": "user", "content": "Hi"}]}


class ScriptedBackend:
    def __init__(self, script: Script):
        self._script = script

    def models(self, owner: str) -> list[ServedModel]:
        return [SERVED]

    def find(self, owner: str, model: str) -> ServedModel:
        return SERVED

    def generate(self, owner: str, model: ServedModel, request: Generation) -> AsyncGenerator[Delta, None]:
        return self._script(request)


@contextmanager
def scripted(script: Script) -> Iterator[OpenAI]:
    app = Starlette(routes=openai_routes(ScriptedBackend(script), someone))
    with (
        serving(app) as address,
        OpenAI(base_url=f"{address}/v1", api_key="key", max_retries=0, timeout=30) as client,
    ):
        yield client


def words(text: str, finish_reason: Any = None, index: int = 0) -> Delta:
    tokens = Tokenizer.from_folder(tiny.FOLDER).encode(text)
    return Delta(index, tokens, [-1.0] * len(tokens), None, finish_reason)


class Endless:
    """Says something (or not) and then nothing, until it is closed; closing takes a moment, as real ones do."""

    def __init__(self, *begin: Delta):
        self._begin = begin
        self.waiting = threading.Event()
        self.closed = threading.Event()

    async def __call__(self, request: Generation) -> AsyncGenerator[Delta, None]:
        try:
            for delta in self._begin:
                yield delta
            self.waiting.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            self.closed.set()


def test_leaving_a_stream_closes_the_request():
    endless = Endless(words("once upon"))
    with scripted(endless) as client:
        stream = client.chat.completions.create(**ASKED, stream=True)
        assert next(stream).choices[0].delta.role == "assistant"
        assert next(stream).choices[0].delta.content == "once upon"
        assert not endless.closed.is_set()
        stream.close()
        assert endless.closed.wait(30)


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_before_the_first_token_closes_the_request(stream: bool):
    endless = Endless()
    with scripted(endless) as client:

        async def ask_and_leave() -> None:
            async with httpx.AsyncClient() as caller:
                url = f"{client.base_url}chat/completions"
                asking = asyncio.create_task(caller.post(url, json=ASKED | {"stream": stream}, timeout=30))
                assert await asyncio.to_thread(endless.waiting.wait, 30)
                asking.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asking

        asyncio.run(ask_and_leave())
        assert endless.closed.wait(30)


@pytest.mark.parametrize(
    ("error", "status", "param"),
    [
        (InputError("sampling_params.max_tokens", "too many"), 400, "max_tokens"),
        (InputError("num_samples", "too many"), 400, "n"),
        (ModelError("is damaged"), 400, None),
        (NonFiniteError("diverged"), 500, None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_refuses(error: EngineError, status: int, param: str | None, stream: bool):
    async def refuse(request: Generation) -> AsyncGenerator[Delta, None]:
        raise error
        yield

    with scripted(refuse) as client, pytest.raises(openai.APIStatusError) as raised:
        client.chat.completions.create(**ASKED, stream=stream)
    assert (raised.value.status_code, raised.value.param) == (status, param)
    assert raised.value.type == ("server_error" if status == 500 else "invalid_request_error")


def test_an_engine_that_fails_in_the_middle_says_so_in_the_stream():
    async def fail(request: Generation) -> AsyncGenerator[Delta, None]:
        yield words("so far")
        raise NonFiniteError("the adapter has diverged")

    with scripted(fail) as client:
        stream = client.chat.completions.create(**ASKED, stream=True)
        with pytest.raises(openai.APIError, match="diverged"):
            list(stream)


def test_an_engine_that_forgets_a_sample_is_an_error():
    async def forget(request: Generation) -> AsyncGenerator[Delta, None]:
        yield words("one", "stop", index=0)

    with scripted(forget) as client:
        with pytest.raises(openai.InternalServerError, match="choice 1"):
            client.chat.completions.create(**ASKED, n=2)
        with pytest.raises(openai.APIError, match="choice 1"):
            list(client.chat.completions.create(**ASKED, n=2, stream=True))


def test_reasoning_comes_apart_from_the_content():
    async def think(request: Generation) -> AsyncGenerator[Delta, None]:
        yield words("<think>two and")
        yield words(" two</think>fo")
        yield words("ur<|im_end|>", "stop")

    with scripted(think) as client:
        message: Any = client.chat.completions.create(**ASKED).choices[0].message
        assert (message.reasoning_content, message.content) == ("two and two", "four")
        deltas: list[Any] = [
            chunk.choices[0].delta for chunk in client.chat.completions.create(**ASKED, stream=True)
        ]
        reasoning = [getattr(delta, "reasoning_content", None) for delta in deltas]
        assert reasoning == [None, "two and two", None, None]
        assert [delta.content for delta in deltas] == ["", "fo", "ur", None]


# --- merge ------------------------------------------------------------------------------------


class Counting:
    def __init__(self, items: list[int], error: Exception | None = None):
        self._items, self._error = items, error
        self.closed = False

    async def run(self) -> AsyncGenerator[int, None]:
        try:
            for item in self._items:
                await asyncio.sleep(0)
                yield item
            if self._error:
                raise self._error
            await asyncio.sleep(0)
        finally:
            self.closed = True


def test_merging_keeps_every_streams_order():
    async def run() -> list[tuple[int, int]]:
        return [
            item
            async for item in merge([Counting([1, 2, 3]).run(), Counting([]).run(), Counting([7, 8]).run()])
        ]

    merged = asyncio.run(run())
    assert [item for number, item in merged if number == 0] == [1, 2, 3]
    assert [item for number, item in merged if number == 2] == [7, 8]


def test_an_error_in_one_stream_closes_the_others():
    streams = [Counting(list(range(100))), Counting([1], ValueError("broken"))]

    async def run() -> None:
        async for _ in merge([stream.run() for stream in streams]):
            pass

    with pytest.raises(ValueError, match="broken"):
        asyncio.run(run())
    assert all(stream.closed for stream in streams)


def test_closing_early_closes_all():
    streams = [Counting([1, 2, 3]), Counting([1, 2, 3])]

    async def run() -> None:
        merged = merge([stream.run() for stream in streams])
        await anext(merged)
        await merged.aclose()
        assert all(stream.closed for stream in streams)

    asyncio.run(run())
