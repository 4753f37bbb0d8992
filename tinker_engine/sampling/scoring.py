"""Logprobs of a prompt's own tokens, of its likeliest ones, of named ones and of drawn ones.

Shapes: T positions, V vocabulary, K draws per position.
"""

import numpy as np
import torch
from torch import Tensor

from tinker_engine.sampling.choice import draw_many, uniforms
from tinker_engine.sampling.types import PromptAltTokens, SampleRequest, TokenLogprob


class PromptScores:
    """Filled piece by piece as the prompt is computed; position i is scored by the state of i − 1."""

    def __init__(self, request: SampleRequest, seed: int):
        self._request = request
        self._seed = seed
        self._prompt = np.asarray(request.prompt, dtype=np.int64)
        length, last_n, draws = len(self._prompt), request.prompt_logprobs_last_n, request.prompt_alt_tokens_k
        self._first = length - last_n if last_n is not None else 1  # position with a logprob
        self._logprobs = np.full(length, np.nan, dtype=np.float32)
        self._topk: list[list[TokenLogprob] | None] = [None] * length
        targets = request.target_prompt_logprobs
        self._targets = np.full(targets.shape, np.nan, dtype=np.float32) if targets is not None else None
        self._drawn = PromptAltTokens(
            np.zeros((length - 1, draws), dtype=np.int64),
            np.full((length - 1, draws), np.nan, dtype=np.float32),
        )
        self.start = self._start()

    @property
    def end(self) -> int:
        """States from here on score nothing, as do those before `start`."""
        return len(self._prompt) - 1

    def _start(self) -> int:
        request = self._request
        starts = [self.end]
        if request.prompt_alt_tokens_k:
            starts.append(0)
        if request.prompt_logprobs or request.topk_prompt_logprobs:
            starts.append(self._first - 1)
        if request.target_prompt_logprobs is not None:
            starts += np.flatnonzero((request.target_prompt_logprobs >= 0).any(axis=1))[:1].tolist()
        return min(starts)

    def add(self, start: int, logits_TV: Tensor) -> None:
        """`logits_TV` come from the states of tokens start, start + 1, …"""
        rows = slice(start, start + len(logits_TV))
        wide = logits_TV if logits_TV.dtype == torch.float64 else logits_TV.float()
        logprobs_TV = torch.log_softmax(wide, dim=-1)
        own = torch.from_numpy(self._prompt[rows.start + 1 : rows.stop + 1, None])
        self._logprobs[rows.start + 1 : rows.stop + 1] = _gather(logprobs_TV, own)[:, 0].numpy()
        if count := self._request.topk_prompt_logprobs:
            values, tokens = torch.topk(logprobs_TV, min(count, logprobs_TV.shape[1]))
            for i, (ids, lps) in enumerate(zip(tokens.tolist(), values.tolist(), strict=True)):
                self._topk[start + 1 + i] = list(zip(ids, lps, strict=True))
        if self._targets is not None and self._request.target_prompt_logprobs is not None:
            wanted = torch.from_numpy(self._request.target_prompt_logprobs[rows].astype(np.int64))
            found = _gather(logprobs_TV, wanted.clamp(min=0))
            self._targets[rows] = torch.where(wanted >= 0, found, torch.nan).numpy()
        if self._request.prompt_alt_tokens_k:
            tokens_TK = draw_many(wide, self._request.params.temperature, self._uniforms(rows))
            self._drawn.tokens[rows] = tokens_TK.cpu().numpy()
            self._drawn.logprobs[rows] = _gather(logprobs_TV, tokens_TK).numpy()

    def _uniforms(self, rows: slice) -> Tensor:
        """[T, K]. Samples are numbered from 0 up, draws from −1 down: their random numbers have nothing in common."""
        positions = np.arange(rows.start, rows.stop)
        draws = [uniforms(self._seed, -1 - k, positions) for k in range(self._request.prompt_alt_tokens_k)]
        return torch.from_numpy(np.stack(draws, axis=1))

    def logprobs(self) -> list[float | None] | None:
        if not self._request.prompt_logprobs:
            return None
        return [*[None] * self._first, *self._logprobs[self._first :].tolist()]

    def topk(self) -> list[list[TokenLogprob] | None] | None:
        if not self._request.topk_prompt_logprobs:
            return None
        return [*[None] * self._first, *self._topk[self._first :]]

    def targets(self) -> np.ndarray | None:
        return self._targets

    def drawn(self) -> PromptAltTokens | None:
        return self._drawn if self._request.prompt_alt_tokens_k else None


def wants_scores(request: SampleRequest) -> bool:
    return (
        request.prompt_logprobs
        or request.topk_prompt_logprobs > 0
        or request.target_prompt_logprobs is not None
        or request.prompt_alt_tokens_k > 0
    )


def _gather(logprobs_TV: Tensor, tokens_TK: Tensor) -> Tensor:
    return logprobs_TV.gather(1, tokens_TK.to(logprobs_TV.device)).cpu()
