"""What the routes need of an engine."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class ServedModel:
    """A model that can be asked: a base model, or weights that were saved for sampling."""

    name: str
    folder: Path  # of the base model: its tokenizer and chat template
    created: int  # seconds since 1970
    owned_by: str


@dataclass(frozen=True)
class Generation:
    """What is to be sampled, as the engine understands it."""

    prompt: list[int]
    num_samples: int
    max_tokens: int | None  # None: as many as the context holds
    temperature: float
    top_p: float
    top_k: int  # -1 is off
    seed: int | None
    stop: list[str] | None  # None: the model's own end tokens
    topk_sample_logprobs: int
    stream: bool
    # With `stop`: the model's end tokens, which stop it as well. As ids, because as text they would also stop a
    # model that spells them out in ordinary tokens: `</s>` is HTML, too.
    stop_tokens: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Delta:
    """New tokens of one sample: some of them if the request streams, else all."""

    index: int
    tokens: list[int]  # with those that completed a stop
    logprobs: list[float]
    topk: list[list[tuple[int, float]]] | None
    finish_reason: FinishReason | None
    cached_tokens: int = 0  # of the prompt


class Backend(Protocol):
    """What the OpenAI-compatible routes need of an engine."""

    def models(self, owner: str) -> list[ServedModel]: ...

    def find(self, owner: str, model: str) -> ServedModel:
        """A base model by name or a sampler checkpoint by path; InputError("model", ...) if there is none."""
        ...

    def generate(self, owner: str, model: ServedModel, request: Generation) -> AsyncGenerator[Delta, None]:
        """Raises EngineError. Closing the generator cancels the request."""
        ...
