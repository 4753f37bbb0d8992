"""What a benchmark leaves behind: its result and the conversations that led to it."""

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Self, TypedDict, cast

Metrics = dict[str, float | int]
Logs = dict[str, Any]
PassAtKScores = dict[int, float]
TurnRole = Literal["user", "assistant", "environment", "grader"]

METRIC_MAX_TOKENS_REACHED = "max_tokens_reached"
METRIC_CONTEXT_OVERFLOW = "context_overflow"


class StoredTurnDict(TypedDict):
    """`StoredTurn` as JSON has it."""

    role: TurnRole
    content: str
    token_count: int
    metadata: dict[str, Any]


class StoredTrajectoryDict(TypedDict):
    """`StoredTrajectory` as JSON has it."""

    idx: int
    benchmark: str
    example_id: str
    turns: list[StoredTurnDict]
    reward: float
    metrics: Metrics
    logs: Logs
    error: str | None
    time_seconds: float


class BenchmarkResultDict(TypedDict):
    """`BenchmarkResult` as JSON has it."""

    name: str
    score: float
    num_examples: int
    num_correct: int
    num_errors: int
    num_truncated: int
    metrics: Metrics
    time_seconds: float
    pass_at_k: dict[str, float]


@dataclass
class StoredTurn:
    """One message of an attempt."""

    role: TurnRole
    content: str
    token_count: int = 0
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass
class StoredTrajectory:
    """One attempt at one example."""

    idx: int
    benchmark: str
    example_id: str = ""
    turns: list[StoredTurn] = field(default_factory=list)
    reward: float = 0.0
    metrics: Metrics = field(default_factory=dict)
    logs: Logs = field(default_factory=dict)
    error: str | None = None
    time_seconds: float = 0.0

    def to_dict(self) -> StoredTrajectoryDict:
        return cast(StoredTrajectoryDict, asdict(self))

    @classmethod
    def from_dict(cls, d: StoredTrajectoryDict | dict[str, Any]) -> Self:
        """Fields that an older file lacks get their defaults, and those of a newer one are left out."""
        known = known_fields(cls, d)
        turns = [StoredTurn(**known_fields(StoredTurn, turn)) for turn in known.pop("turns", [])]
        reward = float(known.pop("reward", 0.0))  # "NaN" is stored as text
        return cls(turns=turns, reward=reward, **known)


@dataclass
class BenchmarkResult:
    """`score` is over all examples; errors and truncated answers count as wrong."""

    name: str
    score: float
    num_examples: int
    num_correct: int
    num_errors: int = 0
    num_truncated: int = 0
    metrics: Metrics = field(default_factory=dict)
    time_seconds: float = 0.0
    pass_at_k: PassAtKScores = field(default_factory=dict)

    @property
    def num_completed(self) -> int:
        return self.num_examples - self.num_errors - self.num_truncated

    @property
    def score_completed(self) -> float:
        return self.num_correct / self.num_completed if self.num_completed else 0.0

    def to_dict(self) -> BenchmarkResultDict:
        as_text = {str(k): score for k, score in self.pass_at_k.items()}  # JSON has no other keys
        return cast(BenchmarkResultDict, {**asdict(self), "pass_at_k": as_text})

    @classmethod
    def from_dict(cls, d: BenchmarkResultDict | dict[str, Any]) -> Self:
        known = known_fields(cls, d)
        pass_at_k = {int(k): float(score) for k, score in known.pop("pass_at_k", {}).items()}
        return cls(score=float(known.pop("score")), pass_at_k=pass_at_k, **known)


def known_fields(kind: type, d: Any) -> dict[str, Any]:
    """The part of a stored record that this version has fields for."""
    return {f.name: d[f.name] for f in fields(kind) if f.name in d}
