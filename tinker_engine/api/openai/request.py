"""The JSON that clients may send.

Null is the same as absent. A parameter that would change the result and is not supported is refused by name,
unless its value asks for nothing; one that changes nothing here is passed over.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from reprlib import repr as short
from typing import Any

from tinker_engine.api.chat_template import GIVEN
from tinker_engine.api.openai.backend import Generation
from tinker_engine.api.openai.messages import read_messages, read_tools
from tinker_engine.errors import InputError
from tinker_engine.wire.body import read_json
from tinker_engine.wire.fields import check_text

MOST_CHOICES = 128
MOST_TOP_LOGPROBS = 20
MOST_STOPS = 64
MOST_PROMPTS = 2048
COMPLETION_TOKENS = 16  # of /v1/completions if nothing is said
_INT64 = (-(2**63), 2**63 - 1)

_SAMPLING = {"model", "stream", "stream_options", "n", "temperature", "top_p", "top_k", "stop", "seed"}
_CHAT = _SAMPLING | {
    *("messages", "max_tokens", "max_completion_tokens", "logprobs", "top_logprobs", "tools", "tool_choice"),
    *("response_format", "chat_template_kwargs"),
}
_COMPLETION = _SAMPLING | {"prompt", "max_tokens", "logprobs"}
# About the caller, its bill, or speed.
_HARMLESS = {
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prediction"),
    *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
}
_NEUTRAL: dict[str, object] = {
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "logit_bias": {},
    "modalities": ["text"],
    "parallel_tool_calls": True,
    "functions": [],
    "function_call": "none",
    "best_of": 1,
    "echo": False,
    "suffix": "",
}


@dataclass(frozen=True)
class Sampling:
    """What chats and completions have in common."""

    model: str
    stream: bool
    include_usage: bool
    n: int
    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    stop: list[str]
    logprobs: bool
    top_logprobs: int

    def generation(self, prompt: list[int], end_tokens: Sequence[int]) -> Generation:
        return Generation(
            prompt=prompt,
            num_samples=self.n,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
            stop=self.stop or None,
            stop_tokens=list(end_tokens) if self.stop else [],
            topk_sample_logprobs=self.top_logprobs,
            stream=self.stream,
        )


@dataclass(frozen=True)
class ChatRequest:
    sampling: Sampling
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    template_variables: dict[str, Any]


@dataclass(frozen=True)
class CompletionRequest:
    sampling: Sampling
    prompts: list[str] | list[list[int]]


def read_body(body: bytes) -> dict[str, Any]:
    return {name: item for name, item in read_json(body).values.items() if item is not None}


def read_chat(body: Mapping[str, Any]) -> ChatRequest:
    _refuse_unsupported(body, _CHAT)
    if "max_tokens" in body and "max_completion_tokens" in body:
        raise InputError("max_tokens", "is the old name of max_completion_tokens: give one of the two")
    if body.get("response_format", {"type": "text"}) != {"type": "text"}:
        raise InputError("response_format", 'only {"type": "text"} is supported')
    name = "max_tokens" if "max_tokens" in body else "max_completion_tokens"
    logprobs = _flag(body, "logprobs")
    if body.get("top_logprobs") and not logprobs:
        raise InputError("top_logprobs", "needs logprobs to be true")
    return ChatRequest(
        sampling=_sampling(
            body,
            max_tokens=_optional_integer(body, name, least=1),
            logprobs=logprobs,
            top_logprobs=_integer(body, "top_logprobs", 0, least=0, most=MOST_TOP_LOGPROBS),
        ),
        messages=read_messages(body.get("messages")),
        tools=_tools(body),
        template_variables=_template_variables(body),
    )


def read_completion(body: Mapping[str, Any]) -> CompletionRequest:
    _refuse_unsupported(body, _COMPLETION)
    return CompletionRequest(
        sampling=_sampling(
            body,
            max_tokens=_integer(body, "max_tokens", COMPLETION_TOKENS, least=1),
            logprobs="logprobs" in body,
            top_logprobs=_integer(body, "logprobs", 0, least=0, most=MOST_TOP_LOGPROBS),
        ),
        prompts=_prompts(body.get("prompt")),
    )


def _sampling(
    body: Mapping[str, Any], *, max_tokens: int | None, logprobs: bool, top_logprobs: int
) -> Sampling:
    """Ranges that the engine checks are left to it."""
    model = body.get("model")
    if not isinstance(model, str):
        raise InputError("model", "must be the name of a model; GET /v1/models lists them")
    return Sampling(
        model=model,
        stream=_flag(body, "stream"),
        include_usage=_include_usage(body),
        n=_integer(body, "n", 1, least=1, most=MOST_CHOICES),
        max_tokens=max_tokens,
        temperature=_number(body, "temperature", 1.0),
        top_p=_number(body, "top_p", 1.0),
        top_k=_integer(body, "top_k", -1),
        seed=_optional_integer(body, "seed"),
        stop=_stop(body.get("stop")),
        logprobs=logprobs,
        top_logprobs=top_logprobs,
    )


def _refuse_unsupported(body: Mapping[str, Any], supported: set[str]) -> None:
    for name, value in body.items():
        if name in supported or name in _HARMLESS or (name in _NEUTRAL and value == _NEUTRAL[name]):
            continue
        only = f" other than {json.dumps(_NEUTRAL[name])}" if name in _NEUTRAL else ""
        raise InputError(name, f"is not supported{only}; leave it out")


def _include_usage(body: Mapping[str, Any]) -> bool:
    options = body.get("stream_options", {})
    if not isinstance(options, dict):
        raise InputError("stream_options", "must be an object")
    if options and not body.get("stream"):
        raise InputError("stream_options", "needs stream to be true")
    if unknown := set(options) - {"include_usage", "include_obfuscation"}:
        raise InputError(f"stream_options.{min(unknown)}", "is not supported; leave it out")
    return _flag(options, "include_usage", "stream_options.include_usage")


def _stop(value: Any) -> list[str]:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise InputError("stop", "must be a string or a list of strings")
    if len(stops) > MOST_STOPS:
        raise InputError("stop", f"holds {len(stops)} strings; at most {MOST_STOPS} are accepted")
    if "" in stops:
        raise InputError("stop", "holds an empty string, which is found everywhere; leave it out")
    for stop in stops:
        check_text(stop, "stop")
    return stops


def _tools(body: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    choice = body.get("tool_choice", "auto")
    if choice not in ("auto", "none"):
        raise InputError("tool_choice", 'only "auto" and "none" are supported')
    tools = read_tools(body.get("tools", []))
    return tools if tools and choice == "auto" else None


def _template_variables(body: Mapping[str, Any]) -> dict[str, Any]:
    variables = body.get("chat_template_kwargs", {})
    if not isinstance(variables, dict):
        raise InputError("chat_template_kwargs", "must be an object")
    if taken := GIVEN & set(variables):
        raise InputError(f"chat_template_kwargs.{min(taken)}", "is given to the template by this server")
    return variables


def _prompts(value: Any) -> list[str] | list[list[int]]:
    wrong = InputError(
        "prompt", "must be a string, a list of strings, a list of token ids, or a list of those"
    )
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not value:
        raise wrong
    if all(type(item) is int for item in value):
        value = [value]
    if len(value) > MOST_PROMPTS:
        raise InputError("prompt", f"holds {len(value)} prompts; at most {MOST_PROMPTS} are accepted")
    if all(isinstance(item, str) for item in value):
        return [check_text(item, "prompt") for item in value]
    if all(isinstance(item, list) and all(type(token) is int for token in item) for item in value):
        return value
    raise wrong


def _flag(values: Mapping[str, Any], name: str, path: str | None = None) -> bool:
    value = values.get(name) or False
    if not isinstance(value, bool):
        raise InputError(path or name, "must be true or false")
    return value


def _optional_integer(
    body: Mapping[str, Any], name: str, *, least: int = _INT64[0], most: int = _INT64[1]
) -> int | None:
    return _integer(body, name, 0, least=least, most=most) if name in body else None


def _integer(
    body: Mapping[str, Any], name: str, default: int, *, least: int = _INT64[0], most: int = _INT64[1]
) -> int:
    value = body.get(name, default)
    if type(value) is not int:
        raise InputError(name, f"must be an integer, got {short(value)}")
    if not least <= value <= most:
        raise InputError(name, f"must be between {least} and {most}, got {short(value)}")
    return value


def _number(body: Mapping[str, Any], name: str, default: float) -> float:
    value = body.get(name, default)
    if type(value) not in (int, float) or abs(value) > 1e9:
        raise InputError(name, f"must be a number of ordinary size, got {short(value)}")
    return float(value)
