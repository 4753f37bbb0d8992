"""The worker's side of the talk with `run`: one line of JSON in, one line out.

Only the standard library is needed: workers run in environments that have nothing of ours.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any

Message = dict[str, Any]
Sampled = tuple[list[int], list[float]]
"""Tokens and their logprobs."""


class Channel:
    """What libraries print goes to standard error: standard output is for answers alone."""

    def __init__(self):
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def receive(self) -> Message | None:
        """None: there is no more to do."""
        line = sys.stdin.readline()
        return json.loads(line) if line else None

    def messages(self) -> Iterator[Message]:
        while (message := self.receive()) is not None:
            yield message

    def send(self, message: Message) -> None:
        self._answers.write(json.dumps(message) + "\n")
        self._answers.flush()


class Turns:
    """For loops that nobody can call step by step: each step of theirs waits here for its turn."""

    def __init__(self, channel: Channel):
        self._channel = channel
        self._started: float | None = None

    def begin(self) -> None:
        if self._channel.receive() is None:
            os._exit(0)  # from the midst of a loop that would go on, or save what nobody wants
        self._started = time.perf_counter()

    def end(self, **figures: float) -> None:
        """Nothing, before the first turn."""
        if self._started is None:
            return
        self._channel.send({"seconds": time.perf_counter() - self._started, **figures})
        self._started = None


def versions(*packages: str) -> Message:
    return {"versions": {name: metadata.version(name) for name in packages}}


def serve_sampling(
    channel: Channel, sample: Callable[[Message], list[Sampled]], about: Message
) -> None:  # until the driver has enough
    """`sample` gives the samples of all requests of a job, in their order."""
    channel.send(about)
    for job in channel.messages():
        started = time.perf_counter()
        sampled = sample(job)
        seconds = time.perf_counter() - started
        _check(job, sampled)
        logprobs = [value for _, some in sampled for value in some]
        answer: Message = {"seconds": seconds, "tokens": len(logprobs)}
        answer["mean_logprob"] = sum(logprobs) / len(logprobs)
        if job["temperature"] == 0:
            answer["samples"] = [tokens for tokens, _ in sampled]
        channel.send(answer)


def _check(job: Message, sampled: list[Sampled]) -> None:
    """Whoever stops early, or gives no logprobs, has not done the work."""
    wanted = [request["max_tokens"] for request in job["requests"] for _ in range(request["num_samples"])]
    for got in ([len(tokens) for tokens, _ in sampled], [len(logprobs) for _, logprobs in sampled]):
        if got != wanted:
            raise SystemExit(f"asked for {wanted} tokens, got {got}")
