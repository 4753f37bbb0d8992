"""What is compared: the work, as messages to the workers, and who does it.

Round 0 is the warm-up and a check at once: greedy samples of all must agree, and so must the first loss. Every round
has texts of its own, so that no cache of an earlier round helps anybody.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.pairs import write_pairs
from benchmarks.peers.processes import Contestant
from benchmarks.peers.texts import Tokenizer, random_texts

Message = dict[str, Any]

PROMPT = 100  # tokens
RANK, LEARNING_RATE = 32, 1e-5
OURS = "ours"
SAMPLERS = {
    OURS: Contestant("sdk_worker"),
    "library": Contestant("library_worker"),
    "transformers": Contestant("transformers_worker", "trl"),
    "vllm": Contestant("vllm_worker", "vllm"),
    "llama_cpp": Contestant("llama_cpp_worker", "llama_cpp"),
}
TRL = Contestant("trl_worker", "trl", (("checkpointing", False),))
TRL_CHECKPOINTING = Contestant("trl_worker", "trl", (("checkpointing", True),))
LOOPS = {OURS: Contestant("loops_worker"), "trl": TRL}


@dataclass(frozen=True)
class Context:
    """What all workloads need to know."""

    model: str  # as the server names it
    folder: Path
    gguf: Path
    tokenizer: Tokenizer
    threads: int
    scratch: Path

    def setup(self, task: str) -> Message:
        return {"task": task, "model": self.model, "folder": str(self.folder), "threads": self.threads}


@dataclass(frozen=True)
class Workload(ABC):
    what: str
    goals: Mapping[str, float] = field(default_factory=dict, kw_only=True)  # times as fast as whom
    memory_goals: Mapping[str, float] = field(default_factory=dict, kw_only=True)  # share of whose peak

    @property
    @abstractmethod
    def contestants(self) -> dict[str, Contestant]: ...

    @property
    @abstractmethod
    def tokens(self) -> int:
        """Of one round, as its rate is told."""

    @abstractmethod
    def setup(self, context: Context, rounds: int) -> Message:
        """The first message to each worker; where data is needed, of all rounds and the warm-up."""

    def job(self, context: Context, number: int) -> Message:
        return {"step": number}


@dataclass(frozen=True)
class Sampling(Workload):
    """Temperature 1, logprobs, no stop: each of so many prompts is sampled for its own number of tokens."""

    new_tokens: tuple[int, ...]
    num_samples: int = 1
    greedy: int = 24  # tokens of the check

    @property
    def contestants(self) -> dict[str, Contestant]:
        return SAMPLERS

    @property
    def tokens(self) -> int:
        return sum(self.new_tokens) * self.num_samples

    def setup(self, context: Context, rounds: int) -> Message:
        rows = len(self.new_tokens) * self.num_samples
        size = {"rows": max(4, rows), "context": PROMPT + max(*self.new_tokens, self.greedy)}
        return {**context.setup("sampling"), "gguf": str(context.gguf), **size}

    def job(self, context: Context, number: int) -> Message:
        new_tokens = self.new_tokens if number else (self.greedy,) * 4
        prompts = random_texts(context.tokenizer, [PROMPT] * len(new_tokens), seed=number)
        requests = [
            {
                "prompt": context.tokenizer.encode(prompt),
                "max_tokens": length,
                "num_samples": self.num_samples if number else 1,
            }
            for prompt, length in zip(prompts, new_tokens, strict=True)
        ]
        return {"requests": requests, "temperature": 1.0 if number else 0.0}


@dataclass(frozen=True)
class Training(Workload):
    """Forward, backward and an optimizer step of LoRA on sequences, every token of which counts.

    TRL with checkpointing is a contest of its own: with both beside ours, memory might not do.
    """

    lengths: tuple[int, ...]
    checkpointing: bool = False  # of TRL
    parts: int = 1  # that TRL takes a batch in, for want of memory

    @property
    def contestants(self) -> dict[str, Contestant]:
        other = {"trl_checkpointing": TRL_CHECKPOINTING} if self.checkpointing else {"trl": TRL}
        return {OURS: Contestant("sdk_worker"), **other}

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    def setup(self, context: Context, rounds: int) -> Message:
        encode = context.tokenizer.encode
        batches = [
            [encode(text) for text in random_texts(context.tokenizer, self.lengths, seed=number)]
            for number in range(rounds + 1)
        ]
        lora = {"rank": RANK, "learning_rate": LEARNING_RATE}
        return {**context.setup("sft"), **lora, "parts": self.parts, "batches": batches}


@dataclass(frozen=True)
class Reinforcement(Workload):
    """Groups of samples, a reward that is a count of even tokens, and an optimizer step on all of them."""

    prompts: int
    num_samples: int
    new_tokens: int

    @property
    def contestants(self) -> dict[str, Contestant]:
        return LOOPS

    @property
    def tokens(self) -> int:
        return self.prompts * self.num_samples * self.new_tokens

    def setup(self, context: Context, rounds: int) -> Message:
        lengths = [PROMPT] * self.prompts
        return {
            **context.setup("rl"),
            "rank": RANK,
            "learning_rate": LEARNING_RATE,
            "num_samples": self.num_samples,
            "new_tokens": self.new_tokens,
            "batches": [random_texts(context.tokenizer, lengths, seed=n) for n in range(rounds + 1)],
        }


@dataclass(frozen=True)
class Preference(Workload):
    """DPO on pairs of answers; the reference's logprobs are part of the step."""

    pairs: int
    answer: int  # tokens

    @property
    def contestants(self) -> dict[str, Contestant]:
        return LOOPS

    @property
    def tokens(self) -> int:
        return 2 * self.pairs * (PROMPT + self.answer)

    def setup(self, context: Context, rounds: int) -> Message:
        steps = rounds + 1
        prompts = random_texts(context.tokenizer, [PROMPT] * self.pairs * steps, seed=0)
        answers = random_texts(context.tokenizer, [self.answer] * 2 * self.pairs * steps, seed=1)
        rows = [list(row) for row in zip(prompts, answers[0::2], answers[1::2], strict=True)]
        lora = {"rank": RANK, "learning_rate": LEARNING_RATE}
        setup = {**context.setup("dpo"), **lora, "rows": rows, "batch_size": self.pairs}
        return setup | {"trl_folder": str(write_pairs(context.scratch / "dpo", setup))}


def evenly(first: int, last: int, count: int) -> tuple[int, ...]:
    """Both ends included, and in no order that anybody could like: the long and the short by turns."""
    up = [round(first + (last - first) * i / (count - 1)) for i in range(count)]
    return tuple(up[i // 2 if i % 2 else count - 1 - i // 2] for i in range(count))


STEPS: dict[str, tuple[str, tuple[int, ...]]] = {
    "training_8x512": ("LoRA step, 8 sequences of 512", (512,) * 8),
    "training_32x128": ("LoRA step, 32 sequences of 128", (128,) * 32),
    "training_ragged": ("LoRA step, 8 sequences of 32 to 1,024", evenly(32, 1024, 8)),
}
PARTS = {"training_ragged": 2}
"""Without checkpointing TRL takes more than 20 GB for eight sequences that it pads to 1,024."""
WORKLOADS: dict[str, Workload] = {
    "sampling_8": Sampling("a group of 8, 128 new tokens each", (128,), 8),
    "sampling_32": Sampling(
        "a group of 32, 128 new tokens each",
        (128,),
        32,
        goals={"transformers": 2.5, "vllm": 1.3, "llama_cpp": 1.2},
    ),
    "sampling_mixed": Sampling(
        "32 prompts, 16 to 256 new tokens", evenly(16, 256, 32), goals={"transformers": 4.0}
    ),
    "sampling_64_prompts": Sampling("64 prompts, 128 new tokens each", (128,) * 64),
    **{
        name: Training(what, lengths, parts=PARTS.get(name, 1), goals={"trl": 1.5}, memory_goals={"trl": 0.8})
        for name, (what, lengths) in STEPS.items()
    },
    **{f"{name}_checkpointing": Training(what, lengths, True) for name, (what, lengths) in STEPS.items()},
    "rl": Reinforcement("RL step, 8 prompts, 8 samples of 64 tokens", 8, 8, 64, goals={"trl": 3.0}),
    "dpo": Preference("DPO step, 8 pairs, answers of 128 tokens", 8, 128),
}
QUICK: dict[str, Workload] = {
    "sampling_8": Sampling("quick", (8,), 8),
    "sampling_32": Sampling("quick", (4,), 32),
    "sampling_mixed": Sampling("quick", evenly(2, 8, 4)),
    "sampling_64_prompts": Sampling("quick", (4,) * 6),
    "training_8x512": Training("quick", (64,) * 2),
    "training_32x128": Training("quick", (32,) * 4),
    "training_ragged": Training("quick", evenly(16, 64, 3)),
    **{f"{name}_checkpointing": Training("quick", (32,) * 2, True) for name in STEPS},
    "rl": Reinforcement("quick", 2, 2, 8),
    "dpo": Preference("quick", 2, 16),
}
"""The same in small: whether everything runs, not how fast."""
