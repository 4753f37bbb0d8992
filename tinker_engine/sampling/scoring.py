"""Logprobs of a prompt's own tokens, of its likeliest ones and of named ones: the model's, at temperature 1."""

import numpy as np
import torch
from torch import Tensor

from tinker_engine.sampling.types import SampleRequest, TokenLogprob


class PromptScores:
    """Filled piece by piece as the prompt is computed; position i is scored by the state of i − 1."""

    def __init__(self, request: SampleRequest):
        self._request = request
        self._prompt = np.asarray(request.prompt, dtype=np.int64)
        length = len(self._prompt)
        self._logprobs = np.full(length, np.nan, dtype=np.float32)
        self._topk: list[list[TokenLogprob] | None] = [None] * length
        targets = request.target_prompt_logprobs
        self._targets = np.full(targets.shape, np.nan, dtype=np.float32) if targets is not None else None

    @property
    def end(self) -> int:
        """States from here on score nothing."""
        return len(self._prompt) - 1

    def add(self, start: int, logits_TV: Tensor) -> None:
        """`logits_TV` come from the states of tokens start, start + 1, …"""
        rows = len(logits_TV)
        wide = logits_TV if logits_TV.dtype == torch.float64 else logits_TV.float()
        logprobs_TV = torch.log_softmax(wide, dim=-1)
        index = torch.from_numpy(self._prompt[start + 1 : start + 1 + rows]).to(logprobs_TV.device)
        self._logprobs[start + 1 : start + 1 + rows] = (
            logprobs_TV.gather(1, index[:, None])[:, 0].cpu().numpy()
        )
        if count := self._request.topk_prompt_logprobs:
            values, tokens = torch.topk(logprobs_TV, min(count, logprobs_TV.shape[1]))
            for i, (ids, lps) in enumerate(zip(tokens.tolist(), values.tolist(), strict=True)):
                self._topk[start + 1 + i] = list(zip(ids, lps, strict=True))
        if self._targets is not None and self._request.target_prompt_logprobs is not None:
            wanted = torch.from_numpy(
                self._request.target_prompt_logprobs[start : start + rows].astype(np.int64)
            )
            found = logprobs_TV.gather(1, wanted.clamp(min=0).to(logprobs_TV.device)).cpu()
            self._targets[start : start + rows] = torch.where(wanted >= 0, found, torch.nan).numpy()

    def logprobs(self) -> list[float | None] | None:
        if not self._request.prompt_logprobs:
            return None
        return [None, *self._logprobs[1:].tolist()]

    def topk(self) -> list[list[TokenLogprob] | None] | None:
        return self._topk if self._request.topk_prompt_logprobs else None

    def targets(self) -> np.ndarray | None:
        return self._targets


def wants_scores(request: SampleRequest) -> bool:
    return (
        request.prompt_logprobs
        or request.topk_prompt_logprobs > 0
        or request.target_prompt_logprobs is not None
    )
