"""Rollouts under way: begun in the order of the data, handed out as they are done.

One queue serves all modes. `capacity` bounds the groups that are begun and not yet part of an update: with room for
one batch, training is on-policy; with room for k more, groups are at most k updates old when they are trained on.
Groups that are older all the same, because others overtook them, are sampled again.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Self

import tinker

from tinker_cookbook.rl.activity import Activity
from tinker_cookbook.rl.group_source import GroupId, GroupSource, GroupTask
from tinker_cookbook.rl.rollouts import FailedGroup
from tinker_cookbook.rl.types import EnvGroupBuilder, TrajectoryGroup
from tinker_cookbook.utils import logtree
from tinker_cookbook.utils.concurrency import cancel_all

RollOut = Callable[[GroupTask, tinker.SamplingClient], Awaitable[TrajectoryGroup | FailedGroup]]


@dataclass(frozen=True)
class RolledOut:
    """A group that is done, and where it came from."""

    id: GroupId
    builder: EnvGroupBuilder
    result: TrajectoryGroup | FailedGroup
    sampling_client_step: int  # updates in the weights it was sampled from
    metrics: dict[str, float]
    log: logtree.Trace  # what environments and graders wrote

    @property
    def group(self) -> TrajectoryGroup:
        assert isinstance(self.result, TrajectoryGroup), "asked of groups that did not fail"
        return self.result


class RolloutPipeline:
    def __init__(
        self,
        source: GroupSource,
        roll_out: RollOut,
        *,
        capacity: int | None,
        max_staleness: int,
        activity: Activity,
    ):
        """`capacity` None: all that the source gives out."""
        self._source = source
        self._roll_out = roll_out
        self._capacity = capacity
        self._max_staleness = max_staleness
        self._activity = activity
        self._sampler: tinker.SamplingClient | None = None
        self._step = 0
        self._wanted: int | None = None  # groups to be trained on from this step on
        self._running: set[asyncio.Task[RolledOut]] = set()
        self._done: asyncio.Queue[asyncio.Task[RolledOut]] = asyncio.Queue()
        self._undelivered = 0  # running, or in the queue
        self._handed_out: list[GroupId] = []  # and not trained on yet
        self._in_update = 0  # groups of an update whose weights are not sampled from yet
        self.stale_groups = 0  # sampled again, since they were last counted

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancel_all(self._running)

    async def sample_from(
        self, sampling_client: tinker.SamplingClient, step: int, *, groups_wanted: int | None = None
    ) -> None:
        """Begin new groups with these weights, which have `step` updates.

        `groups_wanted`: all that will be trained on from this step on; more are not begun.
        """
        self._sampler, self._step = sampling_client, step
        self._in_update = 0
        self._wanted = groups_wanted
        await self._fill()

    async def next_group(self) -> RolledOut | None:
        """The next that is done; None if nothing is under way and the source gives nothing more.

        A group that failed in a way its strategy does not tolerate raises its own exception here.
        """
        while True:
            await self._fill()
            if not self._undelivered:
                return None
            rolled = (await self._done.get()).result()
            self._undelivered -= 1
            if self._step - rolled.sampling_client_step <= self._max_staleness:
                self._handed_out.append(rolled.id)
                return rolled
            self.stale_groups += 1
            self._source.put_back(rolled.id)

    def drop(self, rolled: RolledOut) -> None:
        """It will not be trained on: there is room for another."""
        self._handed_out.remove(rolled.id)
        self._source.done(rolled.id)

    def take_stale_groups(self) -> int:
        """How many were sampled again since this was asked last."""
        count, self.stale_groups = self.stale_groups, 0
        return count

    def trained(self) -> None:
        """All that was handed out is in an update, which the weights of the next `sample_from` have."""
        for group_id in self._handed_out:
            self._source.done(group_id)
        self._in_update += len(self._handed_out)
        self._handed_out = []

    # --- beginning ---------------------------------------------------------------------------------------

    async def _fill(self) -> None:
        limits = [limit for limit in (self._capacity, self._wanted) if limit is not None]
        while not limits or self._outstanding < min(limits):
            task = await self._source.next()
            if task is None:
                return
            self._begin(task)

    @property
    def _outstanding(self) -> int:
        return self._undelivered + len(self._handed_out) + self._in_update

    def _begin(self, group: GroupTask) -> None:
        assert self._sampler is not None, "sample_from comes first"
        running = asyncio.create_task(self._run(group, self._sampler, self._step), name=f"rollout {group.id}")
        self._undelivered += 1
        self._running.add(running)
        running.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[RolledOut]) -> None:
        self._running.discard(task)
        self._done.put_nowait(task)

    async def _run(self, group: GroupTask, sampler: tinker.SamplingClient, step: int) -> RolledOut:
        started = time.perf_counter()
        with self._activity.during("sampling"), logtree.init_trace(describe(group.id)) as log:
            result = await self._roll_out(group, sampler)
        metrics = {"time/trajectory_group_worker_loop/total": time.perf_counter() - started}
        return RolledOut(group.id, group.builder, result, step, metrics, log)


def describe(group_id: GroupId) -> str:
    return f"batch {group_id.batch}, group {group_id.index}"
