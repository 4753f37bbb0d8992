"""A server that keeps checkpoints in a dict and counts training steps instead of making them.

As in the SDK, a save of the state has its place in the queue when it is asked for, and a save for sampling only when
the SDK's thread comes to it: here, at the next request that is answered.
"""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import httpx
import tinker


class FakeServer:
    def __init__(self, run: str = "run-1"):
        self.run = run
        self.steps = 0
        self.stored: dict[str, int] = {}  # path: training steps in these weights
        self.ttl: dict[str, int | None] = {}
        self.broken: Exception | None = None  # what becomes of all that is asked for
        self.slow: asyncio.Event | None = None  # what results wait for
        self.asked: list[str] = []
        self.unplaced: list[FakeFuture] = []

    @property
    def training(self) -> tinker.TrainingClient:
        return cast(tinker.TrainingClient, FakeTrainingClient(self))

    @property
    def service(self) -> tinker.ServiceClient:
        return cast(tinker.ServiceClient, SimpleNamespace(create_rest_client=lambda: FakeRestClient(self)))

    def train(self) -> None:
        self.steps += 1

    def place(self) -> None:
        for future in self.unplaced:
            future.steps = self.steps
        self.unplaced.clear()


class FakeFuture:
    def __init__(self, server: FakeServer, path: str, ttl: int | None, steps: int | None):
        self.server, self.path, self.ttl, self.steps = server, path, ttl, steps
        self.error = server.broken

    async def result_async(self) -> Any:
        server = self.server
        server.place()
        if server.slow is not None:
            await server.slow.wait()
        if self.error is not None:
            raise self.error
        assert self.steps is not None
        server.stored[self.path], server.ttl[self.path] = self.steps, self.ttl
        return SimpleNamespace(path=self.path)


class FakeTrainingClient:
    def __init__(self, server: FakeServer):
        self.server = server

    async def save_state_async(self, name: str, ttl_seconds: int | None = None) -> FakeFuture:
        self.server.asked.append(name)
        path = f"tinker://{self.server.run}/weights/{name}"
        return FakeFuture(self.server, path, ttl_seconds, self.server.steps)

    async def save_weights_for_sampler_async(self, name: str, ttl_seconds: int | None = None) -> FakeFuture:
        path = f"tinker://{self.server.run}/sampler_weights/{name}"
        future = FakeFuture(self.server, path, ttl_seconds, None)
        self.server.unplaced.append(future)
        return future

    async def get_info_async(self) -> None:
        self.server.place()


class FakeRestClient:
    def __init__(self, server: FakeServer):
        self.server = server

    async def delete_checkpoint_from_tinker_path_async(self, path: str) -> None:
        await self.get_weights_info_by_tinker_path(path)
        del self.server.stored[path]

    async def get_weights_info_by_tinker_path(self, path: str) -> None:
        if self.server.broken is not None:
            raise self.server.broken
        if path not in self.server.stored:
            raise not_found()


def not_found(status: int = 404) -> tinker.APIStatusError:
    request = httpx.Request("POST", "http://server/api/v1/weights_info")
    kind = tinker.NotFoundError if status == 404 else tinker.APIStatusError
    return kind("no such checkpoint", response=httpx.Response(status, request=request), body=None)


def no_connection() -> tinker.APIConnectionError:
    return tinker.APIConnectionError(request=httpx.Request("POST", "http://server/"))
