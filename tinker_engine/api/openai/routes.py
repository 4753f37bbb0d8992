"""One request from beginning to end: read it, prepare the prompts, sample, answer."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import wraps

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tinker_engine.api.body import read_body as received
from tinker_engine.api.openai.answer import Answer, ChatChoice, Choice, CompletionChoice, Json, Spelling
from tinker_engine.api.openai.backend import Backend, Delta, ServedModel
from tinker_engine.api.openai.reply import Reply
from tinker_engine.api.openai.request import (
    ChatRequest,
    CompletionRequest,
    Sampling,
    read_body,
    read_chat,
    read_completion,
)
from tinker_engine.api.openai.stream import ClientGone, EventStream, merge, while_connected
from tinker_engine.api.openai.text import AnswerText
from tinker_engine.api.openai.vocabulary import Vocabulary, vocabulary
from tinker_engine.errors import AccessError, EngineError, InputError, ModelError

MOST_BYTES = 64 << 20  # of a request
_CLIENT_GONE = 499  # what proxies log; nobody reads it
# What the engine calls the parameters of this API that have other names there.
_NAMES = {"num_samples": "n", "topk_sample_logprobs": "top_logprobs"}

Handler = Callable[[Request], Awaitable[Response]]


class UnknownModel(InputError):
    """A model that the caller named and this server does not have, or not for this caller."""


def openai_routes(backend: Backend, owner_of: Callable[[Request], str]) -> list[Route]:
    """`owner_of` says who is asking, or raises AccessError."""
    api = _Api(backend)

    def handled(handler: Handler) -> Handler:
        return _answering(handler, owner_of)

    return [
        Route("/v1/models", handled(api.models), methods=["GET"]),
        Route("/v1/models/{id:path}", handled(api.model), methods=["GET"]),
        Route("/v1/chat/completions", handled(api.chat), methods=["POST"]),
        Route("/v1/completions", handled(api.completion), methods=["POST"]),
    ]


@dataclass(frozen=True)
class Job:
    """A request made ready for the engine."""

    sampling: Sampling
    model: ServedModel
    prompts: list[list[int]]
    end_tokens: tuple[int, ...]
    answer: Answer


class _Api:
    def __init__(self, backend: Backend):
        self._backend = backend

    async def models(self, request: Request) -> Response:
        served = self._backend.models(request.state.owner)
        return JSONResponse({"object": "list", "data": [_model_json(model) for model in served]})

    async def model(self, request: Request) -> Response:
        return JSONResponse(_model_json(self._find(request, request.path_params["id"])))

    async def chat(self, request: Request) -> Response:
        asked = read_chat(read_body(await received(request, MOST_BYTES)))
        model = self._find(request, asked.sampling.model)
        return await self._run(request, await asyncio.to_thread(_chat_job, asked, model))

    async def completion(self, request: Request) -> Response:
        asked = read_completion(read_body(await received(request, MOST_BYTES)))
        model = self._find(request, asked.sampling.model)
        return await self._run(request, await asyncio.to_thread(_completion_job, asked, model))

    def _find(self, request: Request, name: str) -> ServedModel:
        try:
            return self._backend.find(request.state.owner, name)
        except InputError as error:
            raise UnknownModel("model", str(error).removeprefix(f"{error.field}: ")) from error

    async def _run(self, request: Request, job: Job) -> Response:
        deltas = self._deltas(request.state.owner, job)
        if not job.sampling.stream:
            return JSONResponse(await while_connected(request.receive, _collect(job.answer, deltas)))
        events = _events(job.answer, deltas)
        return EventStream(await while_connected(request.receive, _first(events)), events)

    def _deltas(self, owner: str, job: Job) -> AsyncGenerator[tuple[int, Delta], None]:
        requests = [job.sampling.generation(prompt, job.end_tokens) for prompt in job.prompts]
        return merge([self._backend.generate(owner, job.model, request) for request in requests])


def _chat_job(asked: ChatRequest, model: ServedModel) -> Job:
    words = vocabulary(model.folder)
    text = words.template.render(asked.messages, tools=asked.tools, **asked.template_variables)

    def choice(index: int, text: AnswerText, spelling: Spelling | None) -> Choice:
        return ChatChoice(index, text, Reply(with_tools=asked.tools is not None), spelling)

    return _job("chat.completion", asked.sampling, model, words, [words.tokenizer.encode(text)], choice)


def _completion_job(asked: CompletionRequest, model: ServedModel) -> Job:
    words = vocabulary(model.folder)
    prompts = [
        words.tokenizer.encode(prompt, add_special_tokens=True) if isinstance(prompt, str) else prompt
        for prompt in asked.prompts
    ]
    return _job("text_completion", asked.sampling, model, words, prompts, CompletionChoice)


def _job(
    kind: str,
    sampling: Sampling,
    model: ServedModel,
    words: Vocabulary,
    prompts: list[list[int]],
    make_choice: Callable[[int, AnswerText, Spelling | None], Choice],
) -> Job:
    spelling = Spelling(words.tokenizer) if sampling.logprobs else None
    choices = [
        make_choice(i, AnswerText(words.tokenizer.token_bytes, words.end_tokens, sampling.stop), spelling)
        for i in range(len(prompts) * sampling.n)
    ]
    answer = Answer(kind, sampling.model, prompts, choices, usage_chunk=sampling.include_usage)
    return Job(sampling, model, prompts, words.end_tokens, answer)


async def _collect(answer: Answer, deltas: AsyncGenerator[tuple[int, Delta], None]) -> Json:
    async with aclosing(deltas):
        async for prompt, delta in deltas:
            answer.add(prompt, delta)
    return answer.whole()


async def _events(
    answer: Answer, deltas: AsyncGenerator[tuple[int, Delta], None]
) -> AsyncGenerator[str, None]:
    """What fails before the first event is raised; later there is no status left to say it with."""
    begun = False
    try:
        async with aclosing(deltas):
            async for prompt, delta in deltas:
                for chunk in answer.add(prompt, delta):
                    begun = True
                    yield json.dumps(chunk, ensure_ascii=False)
        for chunk in answer.end():
            yield json.dumps(chunk, ensure_ascii=False)
    except EngineError as error:
        if not begun:
            raise
        yield json.dumps(_error_json(error), ensure_ascii=False)
    else:
        yield "[DONE]"


async def _first(events: AsyncGenerator[str, None]) -> str:
    return await anext(events)


def _answering(handler: Handler, owner_of: Callable[[Request], str]) -> Handler:
    """The one place where what the engine raises becomes an answer."""

    @wraps(handler)
    async def answering(request: Request) -> Response:
        try:
            request.state.owner = owner_of(request)
            return await handler(request)
        except EngineError as error:
            return JSONResponse(_error_json(error), status_code=_status(error))
        except (ClientGone, ClientDisconnect):
            return Response(status_code=_CLIENT_GONE)

    return answering


def _status(error: EngineError) -> int:
    if isinstance(error, UnknownModel):
        return 404
    if isinstance(error, AccessError):
        return 401
    return 400 if isinstance(error, InputError | ModelError) else 500


def _error_json(error: EngineError) -> Json:
    ours = _status(error) == 500
    param = error.field.removeprefix("sampling_params.") if isinstance(error, InputError) else None
    return {
        "error": {
            "message": str(error),
            "type": "server_error" if ours else "invalid_request_error",
            "param": _NAMES.get(param, param) if param else None,
            "code": "model_not_found" if isinstance(error, UnknownModel) else None,
        }
    }


def _model_json(model: ServedModel) -> Json:
    return {"id": model.name, "object": "model", "created": model.created, "owned_by": model.owned_by}
