"""When the next checkpoint is due."""

from collections.abc import Callable


class Cadence:
    """Every so many steps, tokens or seconds, whichever comes first; 0 switches one off. Never at step 0."""

    def __init__(self, steps: int, tokens: int, seconds: float, clock: Callable[[], float]) -> None:
        self._steps = steps
        self._tokens = tokens
        self._seconds = seconds
        self._clock = clock
        self._saved_at = clock()
        self._seen_tokens = 0
        self.saved_tokens = 0

    def due(self, step: int, tokens: int) -> bool:
        self._seen_tokens = max(self._seen_tokens, tokens)
        return step > 0 and (
            (self._steps > 0 and step % self._steps == 0)
            or (self._tokens > 0 and tokens - self.saved_tokens >= self._tokens)
            or (self._seconds > 0 and self._clock() - self._saved_at >= self._seconds)
        )

    def saved(self, tokens: int | None) -> None:
        """Count from here; a caller that does not give the tokens has given them to `due`."""
        self._saved_at = self._clock()
        self.saved_tokens = self._seen_tokens if tokens is None else tokens
