"""The engine behind the OpenAI routes: base models, and the weights that were saved for sampling."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import numpy as np

from tinker_engine.api.openai import Delta, Generation, ServedModel
from tinker_engine.backends.messages import Done, Progress
from tinker_engine.core.engine import Engine
from tinker_engine.core.records import Checkpoint
from tinker_engine.errors import InputError, NotFoundError
from tinker_engine.wire import messages_pb2 as pb

PATH = "tinker://"
OWNER = "tinker-engine"


class EngineBackend:
    def __init__(self, engine: Engine):
        self._engine = engine

    def models(self, owner: str) -> list[ServedModel]:
        folders = self._engine.settings.models
        saved = [c for c in self._engine.checkpoints.named(owner) if c.kind == "sampler_weights"]
        return [
            *(
                ServedModel(name, folder, int(folder.stat().st_mtime), OWNER)
                for name, folder in folders.items()
            ),
            *(self._served(c.tinker_path, c) for c in saved if c.base_model in folders),
        ]

    def find(self, owner: str, model: str) -> ServedModel:
        if not model.startswith(PATH):
            folder = self._engine.model_folder(model)
            return ServedModel(model, folder, int(folder.stat().st_mtime), OWNER)
        try:
            return self._served(model, self._engine.checkpoints.find(model, owner, "model"))
        except NotFoundError as error:
            raise InputError("model", str(error)) from error

    async def generate(
        self, owner: str, model: ServedModel, request: Generation
    ) -> AsyncGenerator[Delta, None]:
        engine = self._engine
        base, snapshot = model.name, None
        if model.name.startswith(PATH):
            checkpoint = engine.checkpoints.find(model.name, owner, "model")
            base, snapshot = checkpoint.base_model, checkpoint.id
        events = engine.stream(owner, base, snapshot, _body(request), progress=request.stream)
        async with aclosing(events):
            async for event in events:
                if isinstance(event, Progress):
                    yield Delta(
                        event.index, event.tokens, event.logprobs, event.topk, event.stop_reason, event.cached
                    )
                elif not request.stream:
                    for delta in _whole(event):
                        yield delta

    def _served(self, name: str, checkpoint: Checkpoint) -> ServedModel:
        folder = self._engine.model_folder(checkpoint.base_model)
        return ServedModel(name, folder, int(checkpoint.created), checkpoint.owner)


def _body(request: Generation) -> dict[str, Any]:
    stop = None if request.stop is None else [*request.stop, *request.stop_tokens]
    params = {
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "seed": request.seed,
        "stop": stop,
    }
    return {
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": request.prompt}]},
        "num_samples": request.num_samples,
        "sampling_params": params,
        "topk_sample_logprobs": request.topk_sample_logprobs,
    }


def _whole(done: Done) -> list[Delta]:
    answer = pb.SampleResponse.FromString(done.result)
    return [
        Delta(
            index,
            np.frombuffer(sequence.tokens, "<i4").tolist(),
            np.frombuffer(sequence.logprobs, "<f4").tolist(),
            _topk(sequence.topk_sampled_logprobs) if sequence.HasField("topk_sampled_logprobs") else None,
            "stop" if sequence.stop_reason == pb.STOP_REASON_STOP else "length",
            answer.prompt_cache_hit_tokens,
        )
        for index, sequence in enumerate(answer.sequences)
    ]


def _topk(matrix: pb.TopkLogprobs) -> list[list[tuple[int, float]]]:
    shape = matrix.length, matrix.k
    tokens = np.frombuffer(matrix.token_ids, "<i4").reshape(shape).tolist()
    logprobs = np.frombuffer(matrix.logprobs, "<f4").reshape(shape).tolist()
    return [list(zip(ids, values, strict=True)) for ids, values in zip(tokens, logprobs, strict=True)]
