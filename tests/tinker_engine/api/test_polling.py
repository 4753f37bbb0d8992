"""Long polls, over an engine whose compute process answers when the test says so."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from tests.tinker_engine.core.support import ME, FakeCompute, engine_with_fake_compute, until
from tinker_engine.api.app import create_app
from tinker_engine.api.auth import Access, digest
from tinker_engine.api.futures import METADATA_BYTES
from tinker_engine.backends.messages import Done
from tinker_engine.core.engine import Engine
from tinker_engine.model import tiny

KEY = "tml-0123456789abcdefghij"


@asynccontextmanager
async def client(engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(engine, Access({digest(KEY): ME}, "secret"), lambda _: None)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://engine/api/v1/", headers={"x-api-key": KEY}, timeout=60
    ) as http:
        yield http


async def sample_request(engine: Engine) -> str:
    session = await engine.create_session(ME, {})
    sampler = await engine.create_sampler(ME, session.id, 0, tiny.NAME, None)
    return (await engine.sample(ME, sampler.id, 0, b"{}")).request_id


def test_a_poll_ends_with_try_again_after_its_time(tmp_path):
    async def main():
        async with (
            engine_with_fake_compute(tmp_path, poll_seconds=0.001) as (engine, _),
            client(engine) as http,
        ):
            answer = await http.post("retrieve_future", json={"request_id": await sample_request(engine)})
            assert answer.status_code == 408
            assert answer.json()["type"] == "try_again"
            assert int(answer.headers["content-length"]) == len(answer.content)

    asyncio.run(main())


def test_a_poll_ends_with_the_answer_and_can_be_repeated(tmp_path):
    async def main():
        async with (
            engine_with_fake_compute(tmp_path, poll_seconds=3600) as (engine, compute),
            client(engine) as http,
        ):
            request_id = await sample_request(engine)
            polls = [
                asyncio.create_task(http.post("retrieve_future", json={"request_id": request_id}))
                for _ in range(3)
            ]
            await until(engine, lambda: engine.futures._open[request_id].settled._waiters)  # pyright: ignore[reportAttributeAccessIssue]
            answer_protobuf(compute, request_id, b"tokens")
            for poll in polls:
                assert (await poll).content == b"tokens"
            again = await http.post("retrieve_future", json={"request_id": request_id})
            assert (again.status_code, again.content) == (200, b"tokens")
            assert again.headers["content-type"] == "application/x-protobuf"

    asyncio.run(main())


def test_a_poll_is_let_go_when_the_engine_ends(tmp_path):
    async def main():
        async with (
            engine_with_fake_compute(tmp_path, poll_seconds=3600) as (engine, _),
            client(engine) as http,
        ):
            request_id = await sample_request(engine)
            poll = asyncio.create_task(http.post("retrieve_future", json={"request_id": request_id}))
            await until(engine, lambda: engine.futures._open[request_id].settled._waiters)  # pyright: ignore[reportAttributeAccessIssue]
            engine.begin_stop()
            assert (await poll).status_code == 408

    asyncio.run(main())


def test_a_large_answer_is_announced_if_the_client_asks_for_that(tmp_path):
    async def main():
        async with engine_with_fake_compute(tmp_path) as (engine, compute), client(engine) as http:
            request_id = await sample_request(engine)
            large = bytes(METADATA_BYTES + 1)
            answer_protobuf(compute, request_id, large)
            asked = {"request_id": request_id, "allow_metadata_only": True}
            assert (await http.post("retrieve_future", json=asked)).json() == {
                "status": "complete_metadata",
                "response_payload_size": len(large),
            }
            asked["allow_metadata_only"] = False
            assert (await http.post("retrieve_future", json=asked)).content == large

    asyncio.run(main())


def test_more_than_may_wait_is_answered_with_429(tmp_path):
    async def main():
        async with (
            engine_with_fake_compute(tmp_path, queued_requests=1) as (engine, compute),
            client(engine) as http,
        ):
            first = await sample_request(engine)
            fields = {"sampling_session_id": first.rpartition(":")[0], "seq_id": 1}
            answer = await http.post("asample", json=fields)
            assert answer.status_code == 429
            assert int(answer.headers["retry-after"]) >= 1
            answer_protobuf(compute, first, b"tokens")
            await until(engine, lambda: engine.futures.queued == 0)
            assert (await http.post("asample", json=fields)).status_code == 200

    asyncio.run(main())


def test_a_body_beyond_the_limit_is_a_413_also_in_pieces(tmp_path):
    async def pieces():
        for _ in range(10):
            yield b"x" * 100

    async def main():
        async with engine_with_fake_compute(tmp_path, body_bytes=500) as (engine, _), client(engine) as http:
            for content in (b"x" * 501, pieces()):
                answer = await http.post("asample", content=content)
                assert answer.status_code == 413
                assert "500" in answer.json()["error"]

    asyncio.run(main())


def answer_protobuf(compute: FakeCompute, request_id: str, body: bytes) -> None:
    compute.say(Done(request_id, body, "application/x-protobuf"))
