"""What goes into a sampling call and what comes out of it.

Which distribution a returned logprob is of, stated once:

- A **sampled token's** logprob is that of the distribution it was drawn from: temperature applied, cut by
  top-k and top-p, renormalised. Between two tokens, differences at temperature τ are 1/τ of those at 1, so
  importance weights computed from these numbers are right. Greedy decoding (temperature 0) returns the
  model's own logprob, at temperature 1 and uncut.
- The **top-k alternatives** of a sampled token are of that same distribution.
- **Prompt** logprobs of any kind are the model's own, at temperature 1 and uncut. Alternative prompt tokens are
  drawn at the request's temperature, uncut; their logprobs are the model's own all the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tinker_engine.model.lora import Adapter

TokenLogprob = tuple[int, float]
StopReason = Literal["stop", "length"]


@dataclass(frozen=True)
class SamplingParams:
    max_tokens: int | None = None  # None: as many as the context holds
    seed: int | None = None  # sample i depends on (seed, i) alone; None draws one
    # None stops at the model's end-of-sequence tokens; [] never stops; else only at what is listed
    stop: str | Sequence[str] | Sequence[int] | None = None
    temperature: float = 1.0  # 0 is greedy
    top_k: int = -1  # -1 is off
    top_p: float = 1.0


@dataclass(frozen=True)
class SampleRequest:
    prompt: Sequence[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    num_samples: int = 1
    adapter: Adapter | None = None  # a snapshot, or None for the base model
    prompt_logprobs: bool = False
    topk_prompt_logprobs: int = 0
    topk_sample_logprobs: int = 0
    # [len(prompt) − 1, K] token ids; row i is scored at prompt position i + 1; −1 asks for nothing
    target_prompt_logprobs: np.ndarray | None = None
    # prompt_logprobs and topk_prompt_logprobs of the last n positions alone; None: of all but the first
    prompt_logprobs_last_n: int | None = None
    prompt_alt_tokens_k: int = 0  # draws at every prompt position but the first


@dataclass(frozen=True)
class PromptAltTokens:
    """K independent draws, with replacement, for every prompt token but the first: [len(prompt) − 1, K]."""

    tokens: np.ndarray  # int64
    logprobs: np.ndarray  # float32


@dataclass(frozen=True)
class Progress:
    """What a sample got since it was last looked at."""

    tokens: list[int]
    logprobs: list[float]
    topk_logprobs: list[list[TokenLogprob]] | None
    stop_reason: StopReason | None  # None: there is more to come


@dataclass(frozen=True)
class SampledSequence:
    tokens: list[int]  # with the token that completed the stop, if one did
    logprobs: list[float]
    stop_reason: StopReason
    topk_logprobs: list[list[TokenLogprob]] | None = None


@dataclass(frozen=True)
class SampleResult:
    sequences: list[SampledSequence]
    prompt_logprobs: list[float | None] | None = None  # None at position 0 and where not asked for
    topk_prompt_logprobs: list[list[TokenLogprob] | None] | None = None
    target_prompt_logprobs: np.ndarray | None = None  # float32, NaN where −1 was asked
    prompt_alt_tokens: PromptAltTokens | None = None
    prompt_cache_hit_tokens: int = 0
