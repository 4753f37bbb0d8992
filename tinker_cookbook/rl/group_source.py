"""Which groups are rolled out next: those of a data set in order, and before them those that have to be done again."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tinker_cookbook.exceptions import DataError
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset


@dataclass(frozen=True)
class GroupId:
    """Group `index` of batch `batch`, on its `attempt`-th try (from 0)."""

    batch: int
    index: int
    attempt: int = 0


@dataclass(frozen=True)
class GroupTask:
    id: GroupId
    builder: EnvGroupBuilder


class GroupSource:
    """Gives out each group once. What is begun and not trained on is part of its state, so that nothing is lost."""

    def __init__(self, dataset: RLDataset, end_batch: int, *, first_batch: int = 0):
        self._dataset = dataset
        self._end = end_batch
        self._open = first_batch  # batches before this one may be given out
        self._next_batch = first_batch
        self._current: deque[GroupTask] = deque()  # of the batch before `_next_batch`
        self._again: deque[GroupId] = deque()
        self._begun: dict[tuple[int, int], GroupId] = {}
        self._sizes: dict[int, int] = {}  # of the batches that were read

    def open_until(self, batch: int) -> None:
        """Batches before this one may be given out."""
        self._open = min(batch, self._end)

    async def next(self) -> GroupTask | None:
        """None if there is no group that may be given out now."""
        task = await self._take()
        if task is not None:
            self._begun[_key(task.id)] = task.id
        return task

    def done(self, group_id: GroupId) -> None:
        """It was trained on, or dropped for good."""
        del self._begun[_key(group_id)]

    def put_back(self, group_id: GroupId) -> None:
        """To be done once more, with other samples."""
        self.done(group_id)
        self._again.append(replace(group_id, attempt=group_id.attempt + 1))

    async def size_of_batch(self, batch: int) -> int:
        return len(await self._batch(batch))

    @property
    def exhausted(self) -> bool:
        """Every group of the data set is done."""
        at_end = self._next_batch >= self._end and not self._current
        return at_end and not self._again and not self._begun

    @property
    def groups_left(self) -> float:
        """That are not done yet: of batches never read, as many as those that were read have on average."""
        known = len(self._current) + len(self._again) + len(self._begun)
        unread = max(0, self._end - self._next_batch)
        return known + unread * sum(self._sizes.values()) / max(1, len(self._sizes))

    # --- a run that resumes ------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """`cursor`: the first group that was never begun; `pending`: those to be done before it."""
        cursor = self._current[0].id if self._current else GroupId(self._next_batch, 0)
        pending = [*self._begun.values(), *self._again]
        return {
            "cursor": [cursor.batch, cursor.index],
            "pending": [[each.batch, each.index, each.attempt] for each in sorted(pending, key=_key)],
        }

    async def restore(self, state: dict[str, Any]) -> None:
        batch, index = state["cursor"]
        self._again.extend(GroupId(*each) for each in state["pending"])
        self._next_batch, self._current = batch, deque()
        if index:
            self._current = deque((await self._batch(batch))[index:])
            self._next_batch = batch + 1

    # --- the data set ------------------------------------------------------------------------------------

    async def _take(self) -> GroupTask | None:
        if self._again:
            group_id = self._again[0]  # and not popleft: cancelled here, it would be lost
            builder = await self._builder(group_id)
            self._again.popleft()
            return GroupTask(group_id, builder)
        while not self._current and self._next_batch < self._open:
            self._current = deque(await self._batch(self._next_batch))
            self._next_batch += 1
        return self._current.popleft() if self._current else None

    async def _builder(self, group_id: GroupId) -> EnvGroupBuilder:
        batch = await self._batch(group_id.batch)
        if group_id.index >= len(batch):
            raise DataError(
                f"batch {group_id.batch} of {type(self._dataset).__name__} has {len(batch)} groups, and had more "
                "before: get_batch must give the same groups for the same index whenever it is asked"
            )
        return batch[group_id.index].builder

    async def _batch(self, batch: int) -> list[GroupTask]:
        builders: Sequence[EnvGroupBuilder] = await asyncio.to_thread(self._dataset.get_batch, batch)
        if not isinstance(builders, Sequence):
            raise DataError(
                f"batch {batch} of {type(self._dataset).__name__} is a {type(builders).__name__}, and no sequence of "
                "EnvGroupBuilder"
            )
        for builder in builders:
            if not isinstance(builder, EnvGroupBuilder):
                raise DataError(
                    f"batch {batch} of {type(self._dataset).__name__} holds a {type(builder).__name__}, which is no "
                    "EnvGroupBuilder"
                )
        self._sizes[batch] = len(builders)
        return [GroupTask(GroupId(batch, index), builder) for index, builder in enumerate(builders)]


def _key(group_id: GroupId) -> tuple[int, int]:
    return group_id.batch, group_id.index
