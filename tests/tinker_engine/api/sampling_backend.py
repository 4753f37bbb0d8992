"""The real sampler with the tiny model, in a thread, behind the interface that the OpenAI routes ask for."""

import asyncio
import queue
import threading
import traceback
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any

from tinker_engine.api.openai import Delta, Generation, ServedModel
from tinker_engine.errors import EngineError, InputError
from tinker_engine.model import tiny
from tinker_engine.model.decoder import Decoder
from tinker_engine.model.load import load_model
from tinker_engine.sampling.request import Ticket
from tinker_engine.sampling.sampler import Sampler
from tinker_engine.sampling.types import SampleRequest, SamplingParams

CHECKPOINT = "tinker://run:train:0/sampler_weights/final"


@dataclass
class _Work:
    request: Generation
    deliver: Callable[[Delta | EngineError | None], None]
    ticket: Ticket | None = None
    sent: list[int] = field(default_factory=list)  # tokens of each sample


class SamplingBackend:
    def __init__(self) -> None:
        loaded = load_model(device="cpu")
        self.tokenizer = loaded.tokenizer
        self.sampler = Sampler(
            Decoder(loaded.spec, loaded.weights), loaded.tokenizer, loaded.eos_token_ids, cache_tokens=65536
        )
        self.requests: list[Generation] = []
        self._inbox: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._works: list[_Work] = []
        self._thread = threading.Thread(target=self._loop)
        self._thread.start()

    def close(self) -> None:
        self._inbox.put(("end", None))
        self._thread.join(30)
        assert not self._thread.is_alive()

    def models(self, owner: str) -> list[ServedModel]:
        return [ServedModel(name, tiny.FOLDER, 1_700_000_000, owner) for name in (tiny.NAME, CHECKPOINT)]

    def find(self, owner: str, model: str) -> ServedModel:
        for served in self.models(owner):
            if served.name == model:
                return served
        raise InputError("model", f"there is no {model!r} here")

    async def generate(
        self, owner: str, model: ServedModel, request: Generation
    ) -> AsyncGenerator[Delta, None]:
        loop = asyncio.get_running_loop()
        deltas: asyncio.Queue[Delta | EngineError | None] = asyncio.Queue()
        work = _Work(request, lambda item: loop.call_soon_threadsafe(deltas.put_nowait, item) and None)
        self.requests.append(request)
        self._inbox.put(("start", work))
        try:
            while (item := await deltas.get()) is not None:
                if isinstance(item, EngineError):
                    raise item
                yield item
        finally:
            self._inbox.put(("cancel", work))

    def _loop(self) -> None:
        try:
            while self._take_messages():
                if not self.sampler.idle:
                    self.sampler.step()
                for work in list(self._works):
                    self._report(work)
        except BaseException:
            traceback.print_exc()
            raise

    def _take_messages(self) -> bool:
        while self.sampler.idle or not self._inbox.empty():
            kind, work = self._inbox.get()
            if kind == "end":
                return False
            self._start(work) if kind == "start" else self._cancel(work)
        return True

    def _start(self, work: _Work) -> None:
        try:
            work.ticket = self.sampler.submit(_sample_request(work.request))
        except EngineError as error:
            work.deliver(error)
            return
        work.sent = [0] * work.request.num_samples
        self._works.append(work)

    def _cancel(self, work: _Work) -> None:
        if work in self._works and work.ticket is not None:
            self._works.remove(work)
            self.sampler.cancel(work.ticket)

    def _report(self, work: _Work) -> None:
        ticket = work.ticket
        assert ticket is not None
        if ticket.error is not None:
            work.deliver(ticket.error)
            self._works.remove(work)
            return
        for index, new in enumerate(ticket.progress(work.sent)):
            if not new.tokens or not (work.request.stream or new.stop_reason):
                continue
            work.sent[index] += len(new.tokens)
            work.deliver(
                Delta(index, new.tokens, new.logprobs, new.topk_logprobs, new.stop_reason, ticket.cache_hits)
            )
        if ticket.done:
            work.deliver(None)
            self._works.remove(work)


def _sample_request(request: Generation) -> SampleRequest:
    stop: Any = None if request.stop is None else [*request.stop, *request.stop_tokens]
    return SampleRequest(
        request.prompt,
        SamplingParams(
            max_tokens=request.max_tokens,
            seed=request.seed,
            stop=stop,
            temperature=request.temperature,
            top_k=request.top_k,
            top_p=request.top_p,
        ),
        num_samples=request.num_samples,
        topk_sample_logprobs=request.topk_sample_logprobs,
    )
