"""Which samples are computed next, within the cache's memory.

Samples wait in order of arrival. Those with the same context share one `Prefill`; when it is complete they
become rows that decode together, one token a step. When a row needs memory that is not there, unused
prefixes go first, then the youngest rows go back to waiting (what they sampled is kept, and recomputed
as context later).
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from torch import Tensor

from tinker_engine.errors import InputError
from tinker_engine.model.cache import KvCache, Prefix, slot_capacity
from tinker_engine.model.lora import Adapter
from tinker_engine.model.token_ids import common_prefix
from tinker_engine.sampling.attend import PrefillPart
from tinker_engine.sampling.request import Sample, Ticket

MOST_ROWS = 256
SHORT_PROMPT, LONG_PROMPT = 96, 512  # tokens
_WORTH_WAITING = 32  # tokens that need not be computed: about what a step in vain costs


class Prefill:
    """A context being computed, and the samples that start from it."""

    def __init__(self, prefix: Prefix, done: int, *, found: bool, reserved: int):
        self.prefix = prefix
        self.done = done  # tokens whose keys and values are there
        self.found = found  # all of it, in the cache
        self.reserved = reserved  # cache tokens set aside: the prefix if new, and the samples' slots
        self.samples: list[Sample] = []

    @property
    def remaining(self) -> int:
        return len(self.prefix) - self.done

    @property
    def scored(self) -> Ticket | None:
        """The ticket that wants its prompt scored; such a prefill is not shared with other tickets."""
        ticket = self.samples[0].ticket
        return ticket if ticket.scores is not None and not self.samples[0].tokens else None

    @property
    def last_state(self) -> Tensor:
        assert self.prefix.last_D is not None, "the prefix is complete"
        return self.prefix.last_D

    def part(self, start: int, length: int) -> PrefillPart:
        return PrefillPart(slice(start, start + length), self.prefix, self.done)


class Scheduler:
    def __init__(self, cache: KvCache, most_rows: int = MOST_ROWS, *, in_place: bool = False):
        """`in_place`: a prompt that is read where it is costs no more than a copy, and gives the same bits."""
        self.cache = cache
        self.waiting: deque[Sample] = deque()
        self.prefills: list[Prefill] = []
        self.rows: list[Sample] = []  # oldest first
        self._most_rows = most_rows
        self._in_place = in_place

    def submit(self, ticket: Ticket, token_bytes: Callable[[int], bytes]) -> None:
        needed = _most_needed(len(ticket.prompt), ticket.limit)
        if needed > self.cache.budget:
            raise InputError(
                "sampling_params.max_tokens",
                f"prompt and max_tokens of {len(ticket.prompt)} + {ticket.limit} may need {needed} tokens of cache; "
                f"it holds {self.cache.budget}",
            )
        self.waiting.extend(Sample(ticket, i, token_bytes) for i in range(ticket.request.num_samples))

    def cancel(self, ticket: Ticket) -> None:
        ticket.cancelled = True
        self.waiting = deque(sample for sample in self.waiting if sample.ticket is not ticket)
        for sample in [row for row in self.rows if row.ticket is ticket]:
            self.remove(sample)
        for prefill in list(self.prefills):
            prefill.samples = [sample for sample in prefill.samples if sample.ticket is not ticket]
            if not prefill.samples:
                self._abandon(prefill)

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.prefills or self.rows)

    @property
    def load(self) -> int:
        """Samples that are not finished."""
        return len(self.waiting) + self._pending + len(self.rows)

    @property
    def _pending(self) -> int:
        return sum(len(prefill.samples) for prefill in self.prefills)

    # --- waiting → prefill --------------------------------------------------------------------

    def admit(self) -> None:
        """Start as many waiting samples as fit, strictly in order."""
        while self.waiting:
            if len(self.rows) + self._pending >= self._most_rows or not self._admit(self.waiting[0]):
                return
            self.waiting.popleft()

    def _admit(self, sample: Sample) -> bool:
        context, adapter = sample.context, sample.ticket.request.adapter
        scored = sample.ticket.scores is not None and not sample.tokens
        for prefill in self.prefills:
            if self._can_join(prefill, sample, context, adapter, scored):
                return self._join(prefill, sample)
        found, shared = self.cache.prefixes.find(context, adapter)
        if scored and sample.ticket.scores is not None:
            shared = min(shared, sample.ticket.scores.start)  # the states from there on are needed
        if not scored and self._worth_waiting(context, adapter, shared):
            return False
        return self._begin(sample, context, adapter, found, shared)

    def _can_join(
        self, prefill: Prefill, sample: Sample, context: np.ndarray, adapter: Adapter | None, scored: bool
    ) -> bool:
        if scored or prefill.scored is not None:
            return scored and prefill.scored is sample.ticket
        return prefill.prefix.adapter is adapter and np.array_equal(prefill.prefix.tokens_P, context)

    def _join(self, prefill: Prefill, sample: Sample) -> bool:
        slot = slot_capacity(1 + self._copied(prefill, sample, company=1 + len(prefill.samples)))
        if not self.cache.make_room(slot):
            return False
        self.cache.reserved += slot
        prefill.reserved += slot
        prefill.samples.append(sample)
        return True

    def _begin(
        self, sample: Sample, context: np.ndarray, adapter: Adapter | None, found: Prefix | None, shared: int
    ) -> bool:
        complete = found is not None and shared == len(found) == len(context)
        done = len(context) if complete else min(shared, len(context) - 1)
        slot = slot_capacity(1 if self._in_place else len(context) + 1)
        reserved = slot + (0 if complete else len(context))
        if found is not None:
            found.readers += 1  # not to be evicted by the next line
        fits = self.cache.make_room(reserved)
        if found is not None:
            found.readers -= 1
        if not fits:
            # What it could share may be what takes the room: compute it anew, or it would wait for ever.
            return found is not None and found.readers == 0 and self._begin(sample, context, adapter, None, 0)
        self.cache.reserved += reserved
        if complete and found is not None:
            prefix = found
        else:
            prefix = Prefix(self.cache.shape, context, adapter)
            if found is not None:
                prefix.kv[:, :, :, :done] = found.kv[:, :, :, :done]
        prefix.readers += 1
        prefill = Prefill(prefix, done, found=complete, reserved=reserved)
        prefill.samples.append(sample)
        if sample.index == 0 and not sample.tokens:  # later ones find what the request itself computed
            sample.ticket.cache_hits = done
        self.prefills.append(prefill)
        return True

    def _worth_waiting(self, context: np.ndarray, adapter: Adapter | None, shared: int) -> bool:
        if len(context) < shared + _WORTH_WAITING:
            return False
        return any(
            prefill.prefix.adapter is adapter
            and common_prefix(prefill.prefix.tokens_P, context) >= shared + _WORTH_WAITING
            for prefill in self.prefills
        )

    # --- prefill → rows -----------------------------------------------------------------------

    def next_chunks(self, budget: int) -> list[tuple[Prefill, int]]:
        """Tokens to compute of each prefill in this step, neighbours having the same adapter."""
        chunks: list[tuple[Prefill, int]] = []
        for prefill in self.prefills:
            length = min(prefill.remaining, budget)
            if length > 0:
                chunks.append((prefill, length))
                budget -= length
        return sorted(chunks, key=lambda chunk: id(chunk[0].prefix.adapter))

    def finish_prefills(self, finished: Sequence[tuple[Prefill, Sequence[Sample]]]) -> None:
        """These prefixes are complete: they can be shared from now on. The samples with each go on from it."""
        slots: Counter[int] = Counter()
        for prefill, samples in finished:
            self._finish(prefill)
            slots.update(slot_capacity(1 + self._copied(prefill, sample, len(samples))) for sample in samples)
        for capacity, rows in slots.items():
            self.cache.make_slots(capacity, rows)
        for prefill, samples in finished:
            self._start_rows(prefill, samples)

    def _finish(self, prefill: Prefill) -> None:
        self._abandon(prefill)
        if not prefill.found:
            self.cache.prefixes.add(prefill.prefix)

    def _abandon(self, prefill: Prefill) -> None:
        self.prefills.remove(prefill)
        self.cache.reserved -= prefill.reserved
        prefill.prefix.readers -= 1

    def _start_rows(self, prefill: Prefill, samples: Sequence[Sample]) -> None:
        """Samples that share a prefix read it where it is; a lone one may take a copy and decode in the batch."""
        for sample in samples:
            own = None
            if copied := self._copied(prefill, sample, len(samples)):
                own = prefill.prefix.kv
            else:
                sample.prefix = prefill.prefix
                sample.prefix.readers += 1
            sample.bucket, sample.slot = self.cache.add_row(own, 1 + copied)
            self.rows.append(sample)

    def _copied(self, prefill: Prefill, sample: Sample, company: int) -> int:
        """Tokens of its context that a new row takes a copy of."""
        return len(prefill.prefix) if not self._in_place and _takes_copy(sample, company) else 0

    # --- rows ---------------------------------------------------------------------------------

    def grow_rows(self) -> None:
        """Give every row room for one more token, sending the youngest rows back if there is none."""
        for sample in list(self.rows):
            if sample.bucket is None or sample.bucket.lengths[sample.slot] < sample.bucket.capacity:
                continue
            while not self.cache.make_room(2 * sample.bucket.capacity):
                youngest = self.rows[-1]
                self.remove(youngest)
                self.waiting.appendleft(youngest)
                if youngest is sample:
                    break
            if sample.bucket is not None:
                own = sample.bucket.own(sample.slot).clone()
                self._free_slot(sample)
                sample.bucket, sample.slot = self.cache.add_row(own, own.shape[3] + 1)

    def remove(self, sample: Sample) -> None:
        self.rows.remove(sample)
        self._free_slot(sample)
        if sample.prefix is not None:
            sample.prefix.readers -= 1
            sample.prefix = None

    def _free_slot(self, sample: Sample) -> None:
        bucket, slot = sample.bucket, sample.slot
        assert bucket is not None, "a row has a slot"
        moved = bucket.remove(slot)
        for other in self.rows:
            if other.bucket is bucket and other.slot == moved:
                other.slot = slot
        sample.bucket, sample.slot = None, -1

    def row_order(self) -> list[Sample]:
        """One adapter's rows lie together, so that its update is one product; then those of one bucket, by
        slot, so that they need not be gathered."""

        def key(sample: Sample) -> tuple[int, int, int]:
            assert sample.bucket is not None, "a row has a slot"
            return id(sample.ticket.request.adapter), sample.bucket.capacity, sample.slot

        return sorted(self.rows, key=key)

    def by_bucket(self, order: Sequence[Sample]) -> Iterator[tuple[int, list[int]]]:
        """(capacity, places in `order` of the rows of that bucket, by slot)."""
        for capacity, bucket in self.cache.buckets.items():
            if not bucket.lengths:
                continue
            places = [(sample.slot, place) for place, sample in enumerate(order) if sample.bucket is bucket]
            yield capacity, [place for _, place in sorted(places)]


def by_prefix(order: Iterable[Sample]) -> list[tuple[Prefix, list[int]]]:
    """The readers of each shared prefix, by their place in `order`."""
    readers: dict[int, tuple[Prefix, list[int]]] = {}
    for place, sample in enumerate(order):
        if sample.prefix is not None:
            readers.setdefault(id(sample.prefix), (sample.prefix, []))[1].append(place)
    return list(readers.values())


def _takes_copy(sample: Sample, company: int) -> bool:
    """With torch, a prompt that is read where it is costs a call for itself in every layer, a copy room and reading. A
    short one is always copied. Otherwise, where bits count, it depends on the request alone: the two ways round
    differently."""
    if len(sample.ticket.prompt) < SHORT_PROMPT:
        return True
    if not sample.steady:
        return company == 1
    return sample.ticket.request.num_samples == 1 and len(sample.ticket.prompt) < LONG_PROMPT


def _most_needed(prompt: int, limit: int) -> int:
    """Cache tokens with which a sample can always finish: its prompt, and a slot next to the one it outgrew."""
    return prompt + 2 * slot_capacity(prompt + limit)
