"""Finding where a sample ends."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tinker_engine.errors import InputError


@dataclass(frozen=True)
class Stops:
    """What ends a sample: any of these tokens, or any of these byte strings in the text so far."""

    tokens: frozenset[int] = frozenset()
    texts: tuple[bytes, ...] = ()

    @property
    def longest(self) -> int:
        return max((len(text) for text in self.texts), default=0)


def read_stops(stop: str | Sequence[str | int] | None, eos: Sequence[int], vocab_size: int) -> Stops:
    """None is the model's own end of sequence; an explicit list replaces it; an empty one never stops."""
    if stop is None:
        return Stops(tokens=frozenset(eos))
    if isinstance(stop, bytes) or not isinstance(stop, Sequence):
        raise InputError("sampling_params.stop", f"must be a string, strings or token ids, got {stop!r}")
    items = [stop] if isinstance(stop, str) else list(stop)
    texts = [item for item in items if isinstance(item, str)]
    tokens = [item for item in items if isinstance(item, int) and not isinstance(item, bool)]
    if len(texts) + len(tokens) != len(items):
        raise InputError("sampling_params.stop", f"must be strings or token ids, got {stop!r}")
    if "" in texts:
        raise InputError(
            "sampling_params.stop", "holds an empty string, which is found everywhere; leave it out"
        )
    if outside := [token for token in tokens if not 0 <= token < vocab_size]:
        raise InputError(
            "sampling_params.stop", f"token id {outside[0]} is outside the vocabulary 0..{vocab_size - 1}"
        )
    try:
        return Stops(frozenset(tokens), tuple(text.encode() for text in texts))
    except UnicodeEncodeError as error:  # half of a surrogate pair
        raise InputError(
            "sampling_params.stop", "is not valid Unicode: it cannot be written as UTF-8"
        ) from error


class StopWatch:
    """Follows one sample token by token. Works on bytes, so that a stop may begin or end inside a token and
    characters split over tokens are no special case."""

    def __init__(self, stops: Stops, token_bytes: Callable[[int], bytes]):
        self._stops = stops
        self._token_bytes = token_bytes
        self._tail = b""

    def ends_with(self, token: int) -> bool:
        """Add a token; whether the sample ends with it."""
        if token in self._stops.tokens:
            return True
        if not self._stops.texts:
            return False
        text = self._tail + self._token_bytes(token)
        keep = self._stops.longest - 1
        self._tail = text[-keep:] if keep else b""
        return any(stop in text for stop in self._stops.texts)
