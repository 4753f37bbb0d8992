"""Sampling requests on their way through the samplers, shared fairly among clients.

A sampler works in order of arrival, so only as many samples as it can decode at once are handed to it; the rest
wait here, by client, and clients take turns.
"""

import traceback
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from tinker_engine.backends.base_models import BaseModel, BaseModels, Snapshots
from tinker_engine.backends.messages import Done, Failed, FromWorker, Progress, Sample
from tinker_engine.errors import EngineError, InputError
from tinker_engine.sampling.request import Ticket
from tinker_engine.sampling.scheduler import MOST_ROWS
from tinker_engine.sampling.types import SampleRequest
from tinker_engine.wire.body import read_json
from tinker_engine.wire.sampling import SampleCall, encode_sample, read_sample


@dataclass
class _Job:
    message: Sample
    call: SampleCall
    base: BaseModel
    ticket: Ticket | None = None
    seen: list[int] | None = None  # tokens of each sample that were reported, if somebody listens


class SampleJobs:
    def __init__(self, models: BaseModels, snapshots: Snapshots, send: Callable[[FromWorker], None]):
        self._models = models
        self._snapshots = snapshots
        self._send = send
        self._waiting: OrderedDict[str, deque[_Job]] = OrderedDict()  # by client, next in turn first
        self._active: dict[str, _Job] = {}

    @property
    def busy(self) -> bool:
        return bool(self._active or self._waiting)

    def accept(self, message: Sample) -> None:
        base = self._models.find(message.model, message.model_folder)
        call = read_sample(read_json(message.body))
        job = _Job(message, call, base, seen=[0] * call.request.num_samples if message.stream else None)
        self._waiting.setdefault(message.client, deque()).append(job)

    def cancel(self, op: str) -> None:
        job = self._active.pop(op, None)
        if job is not None and job.ticket is not None:
            job.base.sampler.cancel(job.ticket)
            return
        for client, jobs in list(self._waiting.items()):
            self._waiting[client] = deque(job for job in jobs if job.message.op != op)
            if not self._waiting[client]:
                del self._waiting[client]

    def step(self) -> None:
        """Admit what fits, one token for everybody, answer what is finished."""
        self._admit()
        for base in self._models:
            if not base.sampler.idle:
                self._step(base)
        for op, job in list(self._active.items()):
            if job.seen is not None:
                self._report(job, job.seen)
            if job.ticket is not None and job.ticket.done:
                del self._active[op]
                self._answer(job)

    def release(self) -> None:
        """Give back what the samplers keep for the next request, but for prompts."""
        for base in self._models:
            base.sampler.cache.drop_empty()

    def _step(self, base: BaseModel) -> None:
        """The boundary for what a request cannot be blamed for, such as memory: all that shared the step fail."""
        try:
            base.sampler.step()
        except Exception as error:
            trace = traceback.format_exc()
            base.replace_sampler()
            for op, job in list(self._active.items()):
                if job.base is base:
                    del self._active[op]
                    self._send(Failed(op, f"{type(error).__name__}: {error}", "server", trace))

    def stats(self) -> dict[str, float]:
        samplers = [base.sampler for base in self._models]
        return {
            "sampled_tokens": sum(sampler.sampled_tokens for sampler in samplers),
            "prompt_tokens": sum(sampler.prompt_tokens for sampler in samplers),
            "decode_steps": sum(sampler.steps for sampler in samplers),
            "decode_rows": sum(sampler.row_steps for sampler in samplers),
            "rows": sum(sampler.rows for sampler in samplers),
            "cache_use": max((sampler.cache_use for sampler in samplers), default=0.0),
            "samples_waiting": sum(map(len, self._waiting.values())),
            "snapshots_in_memory": len(self._snapshots),
        }

    def _admit(self) -> None:
        """In turns over clients, until the samplers have all they can decode at once."""
        while ready := [client for client, jobs in self._waiting.items() if _has_room(jobs[0])]:
            for client in ready:
                jobs = self._waiting[client]
                if _has_room(jobs[0]):
                    job = jobs.popleft()
                    self._waiting.move_to_end(client)
                    if not jobs:
                        del self._waiting[client]
                    self._start(job)

    def _start(self, job: _Job) -> None:
        try:
            job.ticket = job.base.sampler.submit(self._request(job))
            self._active[job.message.op] = job
        except EngineError as error:
            self._fail(job, error)

    def _request(self, job: _Job) -> SampleRequest:
        request, message = job.call.request, job.message
        if message.snapshot is not None and message.snapshot_folder is not None:
            adapter = self._snapshots.get(message.snapshot, message.snapshot_folder, job.base)
            request = replace(request, adapter=adapter)
        if request.params.seed is None:
            request = replace(request, params=replace(request.params, seed=message.seed))
        return request

    def _report(self, job: _Job, seen: list[int]) -> None:
        assert job.ticket is not None
        for index, new in enumerate(job.ticket.progress(seen)):
            if new.tokens:
                seen[index] += len(new.tokens)
                self._send(
                    Progress(
                        job.message.op,
                        index,
                        new.tokens,
                        new.logprobs,
                        new.topk_logprobs,
                        new.stop_reason,
                        job.ticket.cache_hits,
                    )
                )

    def _answer(self, job: _Job) -> None:
        assert job.ticket is not None
        try:
            body = encode_sample(job.ticket.result, target_cells=job.call.target_cells)
        except EngineError as error:
            self._fail(job, error)
        else:
            self._send(Done(job.message.op, body, "application/x-protobuf"))

    def _fail(self, job: _Job, error: EngineError) -> None:
        category = "user" if isinstance(error, InputError) else "server"
        self._send(Failed(job.message.op, str(error), category))


def _has_room(job: _Job) -> bool:
    return job.base.sampler.load < MOST_ROWS
