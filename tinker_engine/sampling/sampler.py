"""Sampling with continuous batching: `step()` is admit → prefill → decode, for all requests at once."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tinker_engine.errors import InputError, NonFiniteError
from tinker_engine.model.cache import CacheShape, KvCache
from tinker_engine.model.decoder import Decoder
from tinker_engine.model.lora import LoraBatch
from tinker_engine.model.memory import free_bytes
from tinker_engine.model.tokenizer import Tokenizer
from tinker_engine.sampling.attend import PrefillPart, RowKeys
from tinker_engine.sampling.choice import Chosen, choose
from tinker_engine.sampling.request import Sample, Ticket
from tinker_engine.sampling.scheduler import MOST_ROWS, Prefill, Scheduler, by_prefix
from tinker_engine.sampling.step import Step
from tinker_engine.sampling.types import SampleRequest, SampleResult

CACHE_SHARE = 0.25  # of free memory
PREFILL_TOKENS = 2048  # of one step, so that rows in progress never wait long
LOGIT_ELEMENTS = 16 * 1024 * 1024  # held at a time


class Sampler:
    def __init__(
        self,
        decoder: Decoder,
        tokenizer: Tokenizer,
        eos_token_ids: Sequence[int],
        *,
        cache_tokens: int | None = None,
        most_rows: int = MOST_ROWS,
        prefill_tokens: int = PREFILL_TOKENS,
    ):
        """`cache_tokens`: size of the key/value cache; by default a quarter of free memory."""
        self.decoder = decoder
        self._step = Step(decoder)
        self._tokenizer = tokenizer
        self._eos = tuple(eos_token_ids)
        self._prefill_tokens = prefill_tokens
        shape = CacheShape.of(decoder.spec, decoder.dtype, decoder.device)
        room = int(free_bytes(decoder.device) * CACHE_SHARE)
        self.cache = KvCache(shape, room // shape.token_bytes if cache_tokens is None else cache_tokens)
        self.scheduler = Scheduler(self.cache, most_rows, in_place=self._step.native)
        self._failed: list[Ticket] = []  # in this step
        # Counted from the start, for whoever measures; row_steps / steps is the mean number of rows.
        self.sampled_tokens = 0
        self.prompt_tokens = 0  # computed; those found in the cache are not
        self.steps = 0  # in which rows were decoded
        self.row_steps = 0

    def submit(self, request: SampleRequest) -> Ticket:
        """Accept a request; `step` until its ticket is done. A request that cannot be served is refused here."""
        ticket = Ticket(request, self.decoder.spec, self._eos)
        self.scheduler.submit(ticket, self._tokenizer.token_bytes)
        return ticket

    @torch.inference_mode()
    def cancel(self, ticket: Ticket) -> None:
        self.scheduler.cancel(ticket)

    def sample(self, requests: Sequence[SampleRequest]) -> list[SampleResult]:
        """Submit all and run until all are done. If one is refused, none is left behind."""
        tickets: list[Ticket] = []
        try:
            for request in requests:
                tickets.append(self.submit(request))
        except InputError:
            for ticket in tickets:
                self.cancel(ticket)
            raise
        while not all(ticket.done for ticket in tickets):
            self.step()
        return [ticket.result for ticket in tickets]

    @property
    def idle(self) -> bool:
        return self.scheduler.idle

    @property
    def load(self) -> int:
        """Samples that wait, are in prefill or are decoded now."""
        return self.scheduler.load

    @property
    def rows(self) -> int:
        """Samples that are decoded now."""
        return len(self.scheduler.rows)

    @property
    def cache_use(self) -> float:
        """Share of the cache that work in progress holds; prefixes kept in case they are asked for again are not."""
        return self.cache.held / max(1, self.cache.budget)

    @torch.inference_mode()
    def step(self) -> None:
        """One token for every row, and some prompt tokens for those about to join."""
        self.scheduler.admit()
        self._prefill()
        self._decode()
        while self._failed:
            self.scheduler.cancel(self._failed.pop())

    def _prefill(self) -> None:
        if chunks := self.scheduler.next_chunks(self._prefill_tokens):
            self._compute(chunks)
        finished = [prefill for prefill in self.scheduler.prefills if prefill.remaining == 0]
        at_a_time = max(1, LOGIT_ELEMENTS // self.decoder.spec.vocab_size)
        for start in range(0, len(finished), at_a_time):
            self._first_tokens(finished[start : start + at_a_time], at_a_time)

    def _compute(self, chunks: list[tuple[Prefill, int]]) -> None:
        """The keys and values of some prompt tokens, and of prompts that end with them the last token's state."""
        parts: list[PrefillPart] = []
        tokens: list[Tensor] = []
        positions: list[Tensor] = []
        end = 0
        for prefill, length in chunks:
            parts.append(prefill.part(end, length))
            tokens.append(torch.from_numpy(prefill.prefix.tokens_P[prefill.done : prefill.done + length]))
            positions.append(torch.arange(prefill.done, prefill.done + length))
            end += length
        self.prompt_tokens += end
        device = self.decoder.device
        hidden_TD = self._step.of_prompts(
            torch.cat(tokens).to(device),
            torch.cat(positions).to(device),
            parts,
            LoraBatch.runs([(prefill.prefix.adapter, length) for prefill, length in chunks], steady=True),
        )
        for (prefill, length), part in zip(chunks, parts, strict=True):
            self._score(prefill, hidden_TD[part.rows])
            prefill.done += length
            if prefill.remaining == 0:
                prefill.prefix.last_D = hidden_TD[part.rows.stop - 1].clone()

    def _score(self, prefill: Prefill, hidden_TD: Tensor) -> None:
        ticket = prefill.scored
        if ticket is None or ticket.scores is None:
            return
        first = max(0, ticket.scores.start - prefill.done)
        hidden_TD = hidden_TD[first : max(0, ticket.scores.end - prefill.done)]
        at_a_time = max(1, LOGIT_ELEMENTS // self.decoder.spec.vocab_size)
        for start in range(0, len(hidden_TD), at_a_time):
            part_TD = hidden_TD[start : start + at_a_time]
            lora = LoraBatch.single(prefill.prefix.adapter, len(part_TD), steady=True)
            logits = self.decoder.logits(part_TD, lora)
            ticket.scores.add(prefill.done + first + start, logits)

    def _first_tokens(self, prefills: list[Prefill], at_a_time: int) -> None:
        """The state of a prompt's last token gives the first token of each of its samples."""
        prefills = sorted(prefills, key=lambda prefill: id(prefill.prefix.adapter))
        states_PD = torch.stack([prefill.last_state for prefill in prefills])
        lora = LoraBatch.runs([(prefill.prefix.adapter, 1) for prefill in prefills], steady=True)
        logits_PV = self.decoder.logits(states_PD, lora)
        starting = [(place, s) for place, prefill in enumerate(prefills) for s in prefill.samples]
        going_on: list[list[Sample]] = [[] for _ in prefills]
        for start in range(0, len(starting), at_a_time):
            places, samples = zip(*starting[start : start + at_a_time], strict=True)
            chosen = choose(logits_PV[list(places)], [sample.draw() for sample in samples])
            for place, sample, token in zip(places, samples, chosen, strict=True):
                if self._goes_on(sample, token):
                    going_on[place].append(sample)
        self.scheduler.finish_prefills(list(zip(prefills, going_on, strict=True)))

    def _decode(self) -> None:
        self.scheduler.grow_rows()
        order = self.scheduler.row_order()
        if not order:
            return
        self.steps += 1
        self.row_steps += len(order)
        device = self.decoder.device
        steady = any(sample.steady for sample in order)
        buckets = self.cache.buckets
        keys = RowKeys(
            [(buckets[capacity], places) for capacity, places in self.scheduler.by_bucket(order)],
            by_prefix(order),
        )
        lora = LoraBatch.runs([(sample.ticket.request.adapter, 1) for sample in order], steady=steady)
        hidden_TD = self._step.of_rows(
            torch.tensor([sample.tokens[-1] for sample in order], device=device),
            torch.tensor([sample.context_length - 1 for sample in order], device=device),
            max(sample.context_length for sample in order),
            keys,
            lora,
        )
        for sample in order:
            assert sample.bucket is not None, "a row has a slot"
            sample.bucket.lengths[sample.slot] += 1
        logits_BV = self.decoder.logits(hidden_TD, lora)
        for sample, chosen in zip(order, choose(logits_BV, [s.draw() for s in order]), strict=True):
            if not self._goes_on(sample, chosen):
                self.scheduler.remove(sample)

    def _goes_on(self, sample: Sample, chosen: Chosen) -> bool:
        """Take the token; whether there are more to come. A distribution of NaN fails its ticket alone."""
        if math.isnan(chosen.logprob):
            sample.ticket.error = NonFiniteError(
                f"token {len(sample.tokens)} of sample {sample.index} has no probabilities: the model's output is NaN. "
                "The adapter has diverged; sample from an earlier one, or train with a lower learning rate"
            )
            self._failed.append(sample.ticket)
        if sample.ticket.error is not None:
            return False
        self.sampled_tokens += 1
        return not sample.accept(chosen)
