"""What somebody wants to train and sample."""

from dataclasses import dataclass, fields

from tinker_engine.errors import InputError


@dataclass(frozen=True)
class Workload:
    """Training: `batch` sequences of `tokens` tokens per step, all trained on. Sampling: `samples` continuations of
    one prompt, as reinforcement learning asks for them, so long that prompt and continuation are a sequence."""

    rank: int = 32
    batch: int = 8
    tokens: int = 512
    samples: int = 32
    new_tokens: int = 128

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            if getattr(self, name) < 1:
                raise InputError(
                    f"--{name.replace('_', '-')}", f"must be 1 or more, got {getattr(self, name)}"
                )

    @property
    def prompt(self) -> int:
        return max(1, self.tokens - self.new_tokens)
