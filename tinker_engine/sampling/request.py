"""A request on its way: checked on arrival, taken apart into samples, put together again as a result."""

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral

import numpy as np

from tinker_engine.errors import EngineError, InputError
from tinker_engine.model.cache import Bucket, Prefix
from tinker_engine.model.spec import ModelSpec
from tinker_engine.model.token_ids import check_tokens
from tinker_engine.sampling.choice import Chosen, Draw, uniform
from tinker_engine.sampling.scoring import PromptScores, wants_scores
from tinker_engine.sampling.stops import Stops, StopWatch, read_stops
from tinker_engine.sampling.types import (
    Progress,
    SampledSequence,
    SampleRequest,
    SampleResult,
    StopReason,
    TokenLogprob,
)

LEAST_TEMPERATURE = 1e-4  # below this, dividing by it overflows; 0 says greedy
MOST_SAMPLES = 4096
MOST_ALTERNATIVES = 1024


@dataclass(frozen=True)
class Draft:
    """What has been sampled so far of one sample."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    alternatives: list[list[TokenLogprob]] = field(default_factory=list)


class Ticket:
    """An accepted request."""

    def __init__(self, request: SampleRequest, model: ModelSpec, eos: Sequence[int]):
        self.request = request
        self.prompt = check_tokens(request.prompt, "prompt", model)
        self.stops, self.limit = _check(request, model, eos, len(self.prompt))
        self.seed = secrets.randbits(63) if request.params.seed is None else int(request.params.seed)
        self.scores = PromptScores(request, self.seed) if wants_scores(request) else None
        self.drafts = [Draft() for _ in range(request.num_samples)]
        self.sequences: dict[int, SampledSequence] = {}
        self.cache_hits = 0
        self.cancelled = False
        self.error: EngineError | None = None

    @property
    def done(self) -> bool:
        return self.error is not None or len(self.sequences) == self.request.num_samples

    def progress(self, seen: Sequence[int] | None = None) -> list[Progress]:
        """Of each sample, what follows the first `seen` tokens; without `seen`, all there is. Before an error the
        tokens are as valid as any; whether there was one, `done` and `result` tell."""
        alternatives = self.request.topk_sample_logprobs > 0
        pieces: list[Progress] = []
        for i, draft in enumerate(self.drafts):
            new = slice(0 if seen is None else seen[i], None)
            finished = self.sequences.get(i)
            pieces.append(
                Progress(
                    draft.tokens[new],
                    draft.logprobs[new],
                    draft.alternatives[new] if alternatives else None,
                    finished.stop_reason if finished is not None else None,
                )
            )
        return pieces

    @cached_property
    def result(self) -> SampleResult:
        """What was asked for; raises if it could not be computed."""
        assert self.done, "a ticket has a result once it is done"
        if self.error is not None:
            raise self.error
        return SampleResult(
            sequences=[self.sequences[i] for i in range(self.request.num_samples)],
            prompt_logprobs=self.scores.logprobs() if self.scores else None,
            topk_prompt_logprobs=self.scores.topk() if self.scores else None,
            target_prompt_logprobs=self.scores.targets() if self.scores else None,
            prompt_alt_tokens=self.scores.drawn() if self.scores else None,
            prompt_cache_hit_tokens=self.cache_hits,
        )


class Sample:
    """One of a ticket's samples. `prefix`, `bucket` and `slot` say where its keys and values are."""

    def __init__(self, ticket: Ticket, index: int, token_bytes: Callable[[int], bytes]):
        self.ticket = ticket
        self.index = index
        self._draft = ticket.drafts[index]
        self.tokens = self._draft.tokens
        self.prefix: Prefix | None = None
        self.bucket: Bucket | None = None
        self.slot = -1
        self._watch = StopWatch(ticket.stops, token_bytes)

    @property
    def steady(self) -> bool:
        """Whether its tokens and logprobs must be the same again, to the bit: nothing about it is random."""
        params = self.ticket.request.params
        return params.seed is not None or params.temperature == 0

    @property
    def context(self) -> np.ndarray:
        """Everything that comes before the next token."""
        return np.concatenate((self.ticket.prompt, np.asarray(self.tokens, dtype=np.int64)))

    @property
    def context_length(self) -> int:
        return len(self.ticket.prompt) + len(self.tokens)

    def draw(self) -> Draw:
        params = self.ticket.request.params
        return Draw(
            uniform(self.ticket.seed, self.index, len(self.tokens)),
            params.temperature,
            params.top_k,
            params.top_p,
            self.ticket.request.topk_sample_logprobs,
        )

    def accept(self, chosen: Chosen) -> bool:
        """Append a token; whether the sample is finished."""
        self.tokens.append(chosen.token)
        self._draft.logprobs.append(chosen.logprob)
        self._draft.alternatives.append(chosen.alternatives)
        if self._watch.ends_with(chosen.token):
            self._finish("stop")
            return True
        if len(self.tokens) == self.ticket.limit:
            self._finish("length")
            return True
        return False

    def _finish(self, reason: StopReason) -> None:
        topk = self._draft.alternatives if self.ticket.request.topk_sample_logprobs else None
        self.ticket.sequences[self.index] = SampledSequence(self.tokens, self._draft.logprobs, reason, topk)


def _check(request: SampleRequest, model: ModelSpec, eos: Sequence[int], length: int) -> tuple[Stops, int]:
    """The request's stops, and how many tokens it may sample."""
    params = request.params
    room = model.max_context - length
    if room < 1:
        raise InputError(
            "prompt", f"has {length} tokens; the context of {model.max_context} leaves none to sample"
        )
    for name in ("max_tokens", "seed", "top_k"):
        value = getattr(params, name)
        if value is not None and not isinstance(value, Integral):
            raise InputError(f"sampling_params.{name}", f"must be an integer, got {value!r}")
    if params.max_tokens is not None and params.max_tokens < 1:
        raise InputError("sampling_params.max_tokens", f"must be at least 1, got {params.max_tokens}")
    if not 1 <= request.num_samples <= MOST_SAMPLES:
        raise InputError("num_samples", f"must be between 1 and {MOST_SAMPLES}, got {request.num_samples}")
    temperature = params.temperature
    if not math.isfinite(temperature) or temperature < 0 or 0 < temperature < LEAST_TEMPERATURE:
        raise InputError(
            "sampling_params.temperature",
            f"must be 0 (greedy) or a finite number of at least {LEAST_TEMPERATURE}, got {temperature}",
        )
    if params.top_k != -1 and params.top_k < 1:
        raise InputError("sampling_params.top_k", f"must be -1 (off) or at least 1, got {params.top_k}")
    if not 0 < params.top_p <= 1:
        raise InputError("sampling_params.top_p", f"must be above 0 and at most 1, got {params.top_p}")
    for name in ("topk_prompt_logprobs", "topk_sample_logprobs", "prompt_alt_tokens_k"):
        if not 0 <= getattr(request, name) <= MOST_ALTERNATIVES:
            raise InputError(name, f"must be between 0 and {MOST_ALTERNATIVES}, got {getattr(request, name)}")
    _check_targets(request.target_prompt_logprobs, model, length)
    _check_last_n(request, length)
    if request.adapter is not None and not request.adapter.frozen:
        raise InputError("adapter", "is in training and may change; sample from adapter.snapshot()")
    if request.adapter is not None and request.adapter.model != model:
        raise InputError("adapter", "was made for a model of another shape")
    stops = read_stops(params.stop, eos, model.vocab_size)
    return stops, min(room, params.max_tokens or room)


def _check_targets(targets: np.ndarray | None, model: ModelSpec, length: int) -> None:
    if targets is None:
        return
    where = "target_prompt_logprobs"
    if targets.ndim != 2 or len(targets) != length - 1 or targets.dtype.kind not in "iu":
        raise InputError(
            where, f"must be integers of shape [{length - 1}, K], got {targets.dtype} {targets.shape}"
        )
    if targets.size and not (targets.min() >= -1 and targets.max() < model.vocab_size):
        raise InputError(
            where, f"holds ids outside the vocabulary 0..{model.vocab_size - 1} (-1 asks for nothing)"
        )


def _check_last_n(request: SampleRequest, length: int) -> None:
    where, last_n = "prompt_logprobs_last_n", request.prompt_logprobs_last_n
    if last_n is None:
        return
    if not request.prompt_logprobs:
        raise InputError(where, "applies to prompt logprobs; set prompt_logprobs to true as well")
    if not isinstance(last_n, Integral) or last_n < 1:
        raise InputError(where, f"must be an integer of at least 1, got {last_n!r}")
    if last_n >= length:
        raise InputError(where, f"must be below the prompt's length, {length} (the first token has none)")
