"""What the checks share: a connected SDK, small data, and how to call, wait and be refused.

Runs in the environment of the SDK that is checked, so it imports nothing of the engine.
"""

import asyncio
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import tinker

MODEL = "tinker-engine/tiny-chat"
RANK = 8
VOCABULARY = 1024
TOKENS = list(range(300, 316))  # any words do
WAIT_SECONDS = 60.0
RETRIED = {402, 408, 409, 429}  # with all of 5xx: what the SDK tries again for minutes


@dataclass(frozen=True)
class Refusal:
    """What a user sees when the server does not do something."""

    error: str
    message: str


@dataclass(frozen=True)
class Call:
    """The method under check. Calling it waits for the outcome, whether it is a value, a future,
    a coroutine or a coroutine that gives a future: so one check serves a method and its async twin.
    """

    method: str

    def __call__(self, client: Any, *args: Any, **kwargs: Any) -> Any:
        value = getattr(client, self.method)(*args, **kwargs)
        if inspect.iscoroutine(value):
            return asyncio.run(asyncio.wait_for(_awaited(value), WAIT_SECONDS))
        return value.result(WAIT_SECONDS) if hasattr(value, "result") else value


async def _awaited(value: Any) -> Any:
    while inspect.isawaitable(value):
        value = await value
    return value


def refused(action: Callable[[], Any]) -> Refusal:
    """Passes if the server refuses in a way the SDK reports at once and in words."""
    try:
        action()
    except tinker.APIStatusError as error:
        status = error.status_code
        assert 400 <= status < 500, f"the SDK retries a {status} for minutes"
        assert status not in RETRIED, f"the SDK retries a {status} for minutes"
        return _in_words(error, _body_text(error.body) or str(error))
    except tinker.RequestFailedError as error:
        category = getattr(error.category, "value", error.category)
        assert category == "user", f"refused as a {category} error, but it is the caller's to change"
        return _in_words(error, str(error))
    raise AssertionError("this should have been refused, but it was done")


def works_or_refused(action: Callable[[], Any]) -> tuple[Any, Refusal | None]:
    """For what a local server may leave out: the value, or how it was refused."""
    outcome: list[Any] = []
    try:
        return None, refused(lambda: outcome.append(action()))
    except AssertionError:
        if outcome:
            return outcome[0], None
        raise


def _in_words(error: Exception, message: str) -> Refusal:
    assert " " in message, f"{message!r} explains nothing"
    assert "Traceback" not in message, "a traceback explains nothing to a caller"
    return Refusal(type(error).__name__, message)


def _body_text(body: object) -> str | None:
    if not isinstance(body, dict):
        return None
    texts = (body.get(name) for name in ("error", "detail", "message"))
    return next((text for text in texts if isinstance(text, str)), None)


def succeeded(done: "subprocess.CompletedProcess[bytes]") -> str:
    """What a process printed that ended well."""
    said = done.stdout.decode(errors="replace")
    assert done.returncode == 0, f"exit {done.returncode}\n{said}{done.stderr.decode(errors='replace')}"
    return said


def prompt(tokens: list[int] = TOKENS) -> tinker.ModelInput:
    return tinker.ModelInput.from_ints(tokens)


def datum(tokens: list[int] = TOKENS, **inputs: Any) -> tinker.Datum:
    """Next-token targets; every token counts unless `inputs` say otherwise."""
    given: dict[str, Any] = inputs or {"weights": [1.0] * (len(tokens) - 1)}
    given["target_tokens"] = tokens[1:]
    return tinker.Datum(model_input=prompt(tokens[:-1]), loss_fn_inputs=given)


def image_prompt() -> tinker.ModelInput:
    picture = tinker.types.ImageChunk(data=b"\x89PNG\r\n\x1a\n", format="png", expected_tokens=4)
    return tinker.ModelInput(chunks=[picture])


def adam(learning_rate: float = 1e-2) -> tinker.AdamParams:
    return tinker.AdamParams(learning_rate=learning_rate)


def logprobs_of(output: Any) -> np.ndarray:
    return output.loss_fn_outputs[0]["logprobs"].to_numpy()


def forward(client: Any, tokens: list[int] = TOKENS) -> np.ndarray:
    """The trainer's logprob of each token but the first."""
    return logprobs_of(client.forward([datum(tokens)], "cross_entropy").result(WAIT_SECONDS))


def train(client: Any, steps: int = 1) -> float:
    """The loss before the last of `steps` steps."""
    loss = float("nan")
    for _ in range(steps):
        pending = client.forward_backward([datum()], "cross_entropy")
        client.optim_step(adam()).result(WAIT_SECONDS)
        loss = pending.result(WAIT_SECONDS).metrics["loss:sum"]
    return loss


def score(sampler: Any, tokens: list[int] = TOKENS) -> np.ndarray:
    """The sampler's logprob of each token but the first."""
    first, *rest = sampler.compute_logprobs(prompt(tokens)).result(WAIT_SECONDS)
    assert first is None, "the first token has no context to be scored in"
    return np.array(rest, dtype=np.float32)


class Kit:
    """One SDK session with a server. Things that are costly to make are made once, when first used."""

    def __init__(self, url: str, key: str, folder: Path):
        self.url = url
        self.key = key
        self.folder = folder
        self._numbers = count()

    def connect(self, **arguments: Any) -> tinker.ServiceClient:
        """A session of its own, for checks that end it or look at it from outside."""
        return tinker.ServiceClient(base_url=self.url, api_key=self.key, **arguments)

    @cached_property
    def service(self) -> tinker.ServiceClient:
        return self.connect(user_metadata={"made_by": "conformance"})

    @cached_property
    def rest(self) -> Any:
        if hasattr(tinker, "RestClient"):
            return tinker.RestClient(base_url=self.url, api_key=self.key)
        return self.service.create_rest_client()  # the only way before 0.36

    def trainer(self, **arguments: Any) -> tinker.TrainingClient:
        return self.service.create_lora_training_client(MODEL, rank=RANK, seed=1, **arguments)

    @cached_property
    def trained(self) -> tinker.TrainingClient:
        """A run with two steps behind it, for checks that only read or save it."""
        client = self.trainer(user_metadata={"kind": "shared"})
        train(client, steps=2)
        return client

    @cached_property
    def sampler(self) -> tinker.SamplingClient:
        return self.service.create_sampling_client(base_model=MODEL)

    @property
    def session_id(self) -> str:
        return self.trained.model_id.split(":train:")[0]

    def name(self) -> str:
        """A checkpoint name that no other check has."""
        return f"check-{next(self._numbers)}"

    def checkpoint(self) -> str:
        return self.trained.save_state(self.name()).result(WAIT_SECONDS).path

    def sampler_checkpoint(self) -> str:
        return self.trained.save_weights_for_sampler(self.name()).result(WAIT_SECONDS).path

    def listed(self, path: str) -> Any:
        """The entry of a checkpoint in the list of its run, or None."""
        run = path.removeprefix("tinker://").split("/")[0]
        found = self.rest.list_checkpoints(run).result(WAIT_SECONDS).checkpoints
        return next((entry for entry in found if entry.tinker_path == path), None)

    def python(self, *arguments: str, stdin: bytes = b"", **environment: str) -> Any:
        """Run this Python in a process of its own, connected to the server; a CompletedProcess."""
        hub = {"HF_ENDPOINT": self.url, "HF_HOME": str(self.folder / "hub"), "NO_PROXY": "127.0.0.1"}
        tinker_api = {"TINKER_BASE_URL": self.url, "TINKER_API_KEY": self.key, "HOME": str(self.folder)}
        return subprocess.run(
            [sys.executable, "-X", "faulthandler", *arguments],  # a process that crashes says where
            input=stdin,
            capture_output=True,
            timeout=WAIT_SECONDS,
            cwd=self.folder,
            env={**os.environ, **hub, **tinker_api, **environment},
            check=False,
        )

    def script(self, code: str, stdin: bytes = b"") -> Any:
        """What `code` prints as JSON."""
        return json.loads(succeeded(self.python("-c", code, stdin=stdin)))
