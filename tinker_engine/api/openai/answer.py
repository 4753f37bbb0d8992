"""The JSON of an answer, whole or in chunks. Both are made by the same steps, so they say the same."""

import secrets
import time
from collections.abc import Sequence
from typing import Any, Protocol

from tinker_engine.api.openai.backend import Delta, FinishReason
from tinker_engine.api.openai.reply import Parts, Reply, ToolCall
from tinker_engine.api.openai.text import AnswerText, ScoredToken
from tinker_engine.errors import EngineError
from tinker_engine.model.tokenizer import Tokenizer

Json = dict[str, Any]


class Choice(Protocol):
    """One sample on its way."""

    finish_reason: FinishReason | None

    def add(self, delta: Delta) -> list[Json]:
        """What a client that streams is sent for it."""
        ...

    def whole(self) -> Json: ...


class Answer:
    """All choices of a request, `n` for each of its prompts."""

    def __init__(
        self,
        kind: str,
        model: str,
        prompts: Sequence[list[int]],
        choices: Sequence[Choice],
        *,
        usage_chunk: bool,
    ):
        """`kind`: "chat.completion" or "text_completion"."""
        self._kind = kind
        self._model = model
        self._choices = choices
        self._per_prompt = len(choices) // len(prompts)
        self._usage_chunk = usage_chunk
        self._id = f"{'chatcmpl' if kind == 'chat.completion' else 'cmpl'}-{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._prompt_tokens = sum(map(len, prompts))
        self._cached_tokens = [0] * len(prompts)
        self._completion_tokens = 0

    def add(self, prompt: int, delta: Delta) -> list[Json]:
        """Take what came for one of the prompts; the chunks that say it."""
        self._cached_tokens[prompt] = max(self._cached_tokens[prompt], delta.cached_tokens)
        self._completion_tokens += len(delta.tokens)
        choice = self._choices[prompt * self._per_prompt + delta.index]
        return [self._chunk([part]) for part in choice.add(delta)]

    def end(self) -> list[Json]:
        """The chunks after the last delta."""
        self._check_finished()
        return [self._chunk([]) | {"usage": self._usage()}] if self._usage_chunk else []

    def whole(self) -> Json:
        self._check_finished()
        choices = [choice.whole() for choice in self._choices]
        return self._envelope(self._kind, choices) | {"usage": self._usage()}

    def _chunk(self, choices: list[Json]) -> Json:
        kind = f"{self._kind}.chunk" if self._kind == "chat.completion" else self._kind
        return self._envelope(kind, choices) | ({"usage": None} if self._usage_chunk else {})

    def _envelope(self, kind: str, choices: list[Json]) -> Json:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }

    def _usage(self) -> Json:
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": self._completion_tokens,
            "total_tokens": self._prompt_tokens + self._completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(self._cached_tokens)},
        }

    def _check_finished(self) -> None:
        for index, choice in enumerate(self._choices):
            if choice.finish_reason is None:
                raise EngineError(f"the engine ended without finishing choice {index}")


class ChatChoice:
    def __init__(self, index: int, text: AnswerText, reply: Reply, spelling: "Spelling | None"):
        """`spelling`: how to write logprobs, if they are wanted."""
        self.finish_reason: FinishReason | None = None
        self._index = index
        self._text = text
        self._reply = reply
        self._spelling = spelling
        self._tokens: list[ScoredToken] = []
        self._told = 0  # tokens whose logprobs went out
        self._parts = Parts()
        self._begun = False

    def add(self, delta: Delta) -> list[Json]:
        self.finish_reason = delta.finish_reason or self.finish_reason
        shown = self._text.add(delta)
        self._tokens += shown.tokens
        parts = self._reply.add(shown.text, last=delta.finish_reason is not None)
        chunks: list[Json] = []
        if not self._begun:
            self._begun = True
            chunks.append(self._chunk({"role": "assistant", "content": ""}, None, None))
        if parts:
            chunks.append(self._chunk(self._delta(parts), None, self._untold()))
            self._parts.add(parts)
        if delta.finish_reason:
            chunks.append(self._chunk({}, self._reason(), self._untold()))
        return chunks

    def whole(self) -> Json:
        parts = self._parts
        message: Json = {"role": "assistant", "content": parts.content, "refusal": None}
        if parts.reasoning:
            message["reasoning_content"] = parts.reasoning
        if parts.tool_calls:
            message["content"] = parts.content or None
            message["tool_calls"] = [_tool_call(call) for call in parts.tool_calls]
        return {
            "index": self._index,
            "message": message,
            "logprobs": self._logprobs(self._tokens),
            "finish_reason": self._reason(),
        }

    def _chunk(self, delta: Json, finish_reason: str | None, logprobs: Json | None) -> Json:
        return {"index": self._index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}

    def _delta(self, parts: Parts) -> Json:
        delta: Json = {}
        if parts.reasoning:
            delta["reasoning_content"] = parts.reasoning
        if parts.content:
            delta["content"] = parts.content
        if parts.tool_calls:
            first = len(self._parts.tool_calls)
            delta["tool_calls"] = [
                {"index": first + i} | _tool_call(call) for i, call in enumerate(parts.tool_calls)
            ]
        return delta

    def _reason(self) -> str | None:
        called = self.finish_reason == "stop" and self._parts.tool_calls
        return "tool_calls" if called else self.finish_reason

    def _untold(self) -> Json | None:
        tokens, self._told = self._tokens[self._told :], len(self._tokens)
        return self._logprobs(tokens) if tokens else None

    def _logprobs(self, tokens: Sequence[ScoredToken]) -> Json | None:
        return (
            {"content": [self._spelling.chat(t) for t in tokens], "refusal": None} if self._spelling else None
        )


class CompletionChoice:
    def __init__(self, index: int, text: AnswerText, spelling: "Spelling | None"):
        self.finish_reason: FinishReason | None = None
        self._index = index
        self._text = text
        self._spelling = spelling
        self._tokens: list[ScoredToken] = []
        self._shown = ""

    def add(self, delta: Delta) -> list[Json]:
        self.finish_reason = delta.finish_reason or self.finish_reason
        shown = self._text.add(delta)
        self._tokens += shown.tokens
        self._shown += shown.text
        if not (shown.text or shown.tokens or delta.finish_reason):
            return []
        return [self._json(shown.text, shown.tokens, delta.finish_reason)]

    def whole(self) -> Json:
        return self._json(self._shown, self._tokens, self.finish_reason)

    def _json(self, text: str, tokens: Sequence[ScoredToken], finish_reason: FinishReason | None) -> Json:
        logprobs = self._spelling.completion(tokens) if self._spelling else None
        return {"index": self._index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}


class Spelling:
    """Tokens and their logprobs as the API writes them."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer

    def chat(self, token: ScoredToken) -> Json:
        alternatives = [self._scored(other, logprob) for other, logprob in token.alternatives]
        return self._scored(token.token, token.logprob) | {"top_logprobs": alternatives}

    def completion(self, tokens: Sequence[ScoredToken]) -> Json:
        wanted = any(token.alternatives for token in tokens)
        return {
            "tokens": [self._text(token.token) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [self._by_text(token.alternatives) for token in tokens] if wanted else None,
            "text_offset": [token.offset for token in tokens],
        }

    def _scored(self, token: int, logprob: float) -> Json:
        return {
            "token": self._text(token),
            "logprob": logprob,
            "bytes": list(self._tokenizer.token_bytes(token)),
        }

    def _by_text(self, alternatives: Sequence[tuple[int, float]]) -> dict[str, float]:
        """Different tokens can look alike, parts of characters do: the most likely one, which is first, counts."""
        return {self._text(token): logprob for token, logprob in reversed(alternatives)}

    def _text(self, token: int) -> str:
        return self._tokenizer.token_bytes(token).decode(errors="replace")


def _tool_call(call: ToolCall) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
