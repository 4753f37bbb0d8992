"""Tokens of one sample → the text that can be shown of it.

A stop is never shown, not even its beginning while it may still become one; neither is half a character. All of
it works on bytes, as the engine's own search for stops does, so both find the same.
"""

import codecs
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from tinker_engine.api.openai.backend import Delta


@dataclass(frozen=True)
class ScoredToken:
    token: int
    logprob: float
    alternatives: list[tuple[int, float]]
    offset: int  # in the shown text, in characters


@dataclass(frozen=True)
class Shown:
    """What more can be shown, and the tokens that begin in it."""

    text: str = ""
    tokens: list[ScoredToken] = field(default_factory=list)


class AnswerText:
    def __init__(
        self, token_bytes: Callable[[int], bytes], end_tokens: Collection[int], stops: Sequence[str]
    ):
        self._token_bytes = token_bytes
        self._end_tokens = frozenset(end_tokens)
        self._stops = [stop.encode() for stop in stops]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = b""  # may be the beginning of a stop
        self._begun: deque[tuple[int, int, float, list[tuple[int, float]]]] = deque()  # with their first byte
        self._taken = 0  # bytes that came
        self._released = 0  # bytes that went to the decoder
        self._characters = 0  # that were shown
        self._over = False

    def add(self, delta: Delta) -> Shown:
        self._take(delta)
        found = [place for stop in self._stops if (place := self._held.find(stop)) >= 0]
        if found:
            return self._release(min(found), last=True)
        if delta.finish_reason is not None:
            return self._release(len(self._held), last=True)
        return self._release(len(self._held) - _beginning(self._held, self._stops), last=False)

    def _take(self, delta: Delta) -> None:
        alternatives = delta.topk or [[] for _ in delta.tokens]
        spelled: list[bytes] = []
        for token, logprob, others in zip(delta.tokens, delta.logprobs, alternatives, strict=True):
            if self._over or token in self._end_tokens:  # nothing comes after an end token, and it is no text
                continue
            spelled.append(self._token_bytes(token))
            self._begun.append((self._taken, token, logprob, others))
            self._taken += len(spelled[-1])
        self._held += b"".join(spelled)

    def _release(self, count: int, *, last: bool) -> Shown:
        """Show the first `count` bytes that are held."""
        tokens: list[ScoredToken] = []
        pieces: list[str] = []
        first, done = self._released, 0
        while self._begun and self._begun[0][0] < first + count:
            start, token, logprob, others = self._begun.popleft()
            pieces.append(self._decode(self._held[done : start - first]))
            done = start - first
            tokens.append(ScoredToken(token, logprob, others, self._characters))
        pieces.append(self._decode(self._held[done:count], last=last))
        self._released += count
        self._held = self._held[count:]
        if last:
            self._over, self._held = True, b""
            self._begun.clear()
        return Shown("".join(pieces), tokens)

    def _decode(self, data: bytes, *, last: bool = False) -> str:
        text = self._decoder.decode(data, final=last)
        self._characters += len(text)
        return text


def _beginning(data: bytes, stops: Sequence[bytes]) -> int:
    """How many bytes at the end of `data` may be the beginning of a stop."""
    longest = max((len(stop) for stop in stops), default=1) - 1
    for length in range(min(longest, len(data)), 0, -1):
        if any(stop.startswith(data[-length:]) for stop in stops):
            return length
    return 0
