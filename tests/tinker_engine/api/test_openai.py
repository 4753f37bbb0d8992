"""The routes with OpenAI's own clients, over a real server, with the real sampler and the tiny model."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from starlette.applications import Starlette

from tests.tinker_engine.api.sampling_backend import CHECKPOINT, SamplingBackend
from tests.tinker_engine.api.support import serving, someone
from tinker_engine.api.chat_template import ChatTemplate
from tinker_engine.api.openai import openai_routes
from tinker_engine.model import tiny
from tinker_engine.sampling.types import SampleRequest, SamplingParams

MODEL = tiny.NAME
TALK: Any = [{"role": "user", "content": "Tell me about the weather, größer."}]
SUM: Any = [{"role": "user", "content": "What is 12 + 30?"}]
CALCULATOR: Any = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "works out + - *",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
    },
}
WILD: Any = {"model": MODEL, "messages": TALK, "temperature": 2.5, "seed": 3, "max_tokens": 60}


@pytest.fixture(scope="module")
def backend() -> Iterator[SamplingBackend]:
    backend = SamplingBackend()
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def address(backend: SamplingBackend) -> Iterator[str]:
    with serving(Starlette(routes=openai_routes(backend, someone))) as address:
        yield address


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{address}/v1", api_key="key", max_retries=0, timeout=60) as client:
        yield client


def text_of(choice: Any) -> str:
    return choice.message.content


def joined(chunks: Iterable[Any], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(choice.delta.content or "" for choice in choices)


def finish_reasons(chunks: Iterable[Any]) -> list[tuple[int, str]]:
    choices = [choice for chunk in chunks for choice in chunk.choices]
    return sorted((choice.index, choice.finish_reason) for choice in choices if choice.finish_reason)


# --- models -----------------------------------------------------------------------------------


def test_models_are_listed_and_found(client: OpenAI):
    assert [model.id for model in client.models.list()] == [MODEL, CHECKPOINT]
    for name in (MODEL, CHECKPOINT):
        model = client.models.retrieve(name)
        assert (model.id, model.object, model.owned_by) == (name, "model", "someone")


def test_an_unknown_model_is_404(client: OpenAI):
    calls: list[Callable[[], object]] = [
        lambda: client.models.retrieve("org/other"),
        lambda: client.chat.completions.create(model="org/other", messages=SUM),
        lambda: client.chat.completions.create(model="org/other", messages=SUM, stream=True),
        lambda: client.completions.create(model="org/other", prompt="a"),
    ]
    for call in calls:
        with pytest.raises(openai.NotFoundError) as refused:
            call()
        assert (refused.value.code, refused.value.param) == ("model_not_found", "model")
        assert "org/other" in refused.value.message


# --- chat -------------------------------------------------------------------------------------


def test_a_chat_is_what_the_sampler_says(client: OpenAI, backend: SamplingBackend):
    done = client.chat.completions.create(model=MODEL, messages=SUM, temperature=0)
    (choice,) = done.choices
    assert (choice.message.content, choice.finish_reason, choice.message.tool_calls) == ("42", "stop", None)
    prompt = backend.tokenizer.encode(ChatTemplate.from_folder(tiny.FOLDER).render(SUM))
    assert backend.requests[-1].prompt == prompt
    assert done.usage is not None
    assert done.usage.prompt_tokens == len(prompt)
    assert done.usage.completion_tokens == len(backend.tokenizer.encode("42<|im_end|>"))
    assert done.usage.total_tokens == done.usage.prompt_tokens + done.usage.completion_tokens


def test_the_same_prompt_again_is_cached(client: OpenAI):
    messages: Any = [{"role": "user", "content": "Which of 17 and 71 is larger?"}]
    client.chat.completions.create(model=MODEL, messages=messages, max_tokens=1)
    usage = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=1).usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens


def test_a_seed_gives_the_same_choices_streamed_or_not(client: OpenAI):
    done = client.chat.completions.create(**WILD, n=3)
    chunks = list(client.chat.completions.create(**WILD, n=3, stream=True))
    assert [joined(chunks, i) for i in range(3)] == [text_of(choice) for choice in done.choices]
    assert finish_reasons(chunks) == [(choice.index, choice.finish_reason) for choice in done.choices]
    assert len({text_of(choice) for choice in done.choices}) == 3
    assert sum(len(chunk.choices) for chunk in chunks) > 12  # in pieces
    assert all(chunk.usage is None for chunk in chunks)
    assert len({(chunk.id, chunk.created, chunk.object) for chunk in chunks}) == 1
    assert "<|im_end|>" not in "".join(text_of(choice) for choice in done.choices)


def test_usage_comes_last_in_a_stream_that_asks_for_it(client: OpenAI):
    done = client.chat.completions.create(**WILD)
    *chunks, last = client.chat.completions.create(
        **WILD, stream=True, stream_options={"include_usage": True}
    )
    assert last.choices == []
    assert last.usage is not None
    assert done.usage is not None
    assert last.usage.completion_tokens == done.usage.completion_tokens
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


def test_max_tokens_ends_with_length(client: OpenAI):
    for name in ("max_tokens", "max_completion_tokens"):
        done = client.chat.completions.create(model=MODEL, messages=SUM, temperature=0, extra_body={name: 1})
        assert done.choices[0].finish_reason == "length"
        assert done.usage is not None
        assert done.usage.completion_tokens == 1


def long_text(client: OpenAI) -> str:
    text = text_of(client.chat.completions.create(**WILD).choices[0])
    assert len(text) > 40
    return text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("start", "length"), [(5, 1), (11, 6), (20, 15)])
def test_a_stop_string_is_cut_off(client: OpenAI, stream: bool, start: int, length: int):
    text = long_text(client)
    stop = text[start : start + length]
    expected = text[: text.find(stop)]
    wanted: Any = WILD | {"stop": [stop, "<never>", "<never 2>", "<never 3>", "<never 4>"]}
    if stream:
        chunks = list(client.chat.completions.create(**wanted, stream=True))
        assert (joined(chunks), finish_reasons(chunks)) == (expected, [(0, "stop")])
    else:
        choice = client.chat.completions.create(**wanted).choices[0]
        assert (text_of(choice), choice.finish_reason) == (expected, "stop")


def test_the_end_of_the_turn_stops_beside_stop_strings(client: OpenAI, backend: SamplingBackend):
    done = client.chat.completions.create(model=MODEL, messages=SUM, temperature=0, stop="<never>")
    assert (text_of(done.choices[0]), done.choices[0].finish_reason) == ("42", "stop")
    assert backend.requests[-1].stop == ["<never>"]
    assert set(backend.requests[-1].stop_tokens) == {2, 0}


def test_logprobs_are_the_samplers(client: OpenAI, backend: SamplingBackend):
    wanted: Any = WILD | {"logprobs": True, "top_logprobs": 3}
    choice = client.chat.completions.create(**wanted).choices[0]
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    prompt = backend.requests[-1].prompt
    params = SamplingParams(max_tokens=60, seed=3, temperature=2.5)
    direct = backend.sampler.sample([SampleRequest(prompt, params, topk_sample_logprobs=3)])[0].sequences[0]
    text_tokens = len(direct.tokens) - (direct.stop_reason == "stop")
    entries = choice.logprobs.content
    assert [entry.logprob for entry in entries] == pytest.approx(direct.logprobs[:text_tokens], abs=1e-5)
    assert b"".join(bytes(entry.bytes or []) for entry in entries).decode() == text_of(choice)
    assert direct.topk_logprobs is not None
    for entry, alternatives in zip(entries, direct.topk_logprobs, strict=False):
        found = [(bytes(other.bytes or []), other.logprob) for other in entry.top_logprobs]
        assert [spelled for spelled, _ in found] == [
            backend.tokenizer.token_bytes(t) for t, _ in alternatives
        ]
        assert [p for _, p in found] == pytest.approx([p for _, p in alternatives], abs=1e-5)
    streamed = [
        entry
        for chunk in client.chat.completions.create(**wanted, stream=True)
        for part in chunk.choices
        if part.logprobs
        for entry in part.logprobs.content or []
    ]
    assert [entry.token for entry in streamed] == [entry.token for entry in entries]


def test_no_logprobs_unless_asked_for(client: OpenAI):
    assert client.chat.completions.create(**WILD).choices[0].logprobs is None


# --- tools ------------------------------------------------------------------------------------

BIG: Any = [{"role": "user", "content": "What is 1234 * 567?"}]


def test_a_tool_is_called_and_its_result_used(client: OpenAI, backend: SamplingBackend):
    wanted: Any = {"model": MODEL, "messages": BIG, "tools": [CALCULATOR], "temperature": 0}
    choice = client.chat.completions.create(**wanted).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "calculator"
    assert set(json.loads(call.function.arguments)) == {"expression"}
    # As clients do it: the message goes back as it came.
    result: Any = {"role": "tool", "tool_call_id": call.id, "content": "699678"}
    more = [*BIG, choice.message.model_dump(), result]
    client.chat.completions.create(**wanted | {"messages": more})
    prompt = backend.tokenizer.decode(backend.requests[-1].prompt)
    assert (
        f'<tool_call>{{"name": "calculator", "arguments": {call.function.arguments}}}</tool_call>' in prompt
    )
    assert "<|im_start|>tool\n699678<|im_end|>" in prompt


def test_a_tool_call_in_a_stream(client: OpenAI):
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=BIG, tools=[CALCULATOR], temperature=0, stream=True
        )
    )
    assert joined(chunks) == ""
    assert finish_reasons(chunks) == [(0, "tool_calls")]
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert [(call.index, call.function.name if call.function else None) for call in calls] == [
        (0, "calculator")
    ]


def test_with_tool_choice_none_the_model_hears_of_no_tools(client: OpenAI, backend: SamplingBackend):
    client.chat.completions.create(
        model=MODEL, messages=BIG, tools=[CALCULATOR], tool_choice="none", max_tokens=1
    )
    assert "calculator" not in backend.tokenizer.decode(backend.requests[-1].prompt)


# --- completions ------------------------------------------------------------------------------


def test_completions_of_texts_and_of_tokens(client: OpenAI, backend: SamplingBackend):
    text = ChatTemplate.from_folder(tiny.FOLDER).render(SUM)
    ids = backend.tokenizer.encode(text)
    prompts: list[Any] = [text, [text], ids, [ids]]
    for prompt in prompts:
        done = client.completions.create(model=MODEL, prompt=prompt, temperature=0)
        assert [(c.text, c.finish_reason) for c in done.choices] == [("42", "stop")]
        assert done.object == "text_completion"
        assert done.usage is not None
        assert done.usage.prompt_tokens == len(ids)


def test_many_prompts_and_samples_are_numbered_prompt_by_prompt(client: OpenAI):
    prompts = ["The weather is", "A dog", "Number 3"]
    wanted: Any = {"model": MODEL, "seed": 3, "max_tokens": 8, "temperature": 1.5}
    done = client.completions.create(prompt=prompts, n=2, **wanted)
    assert [choice.index for choice in done.choices] == list(range(6))
    alone = [client.completions.create(prompt=prompt, n=2, **wanted).choices for prompt in prompts]
    assert [c.text for c in done.choices] == [c.text for choices in alone for c in choices]
    texts = [""] * 6
    for chunk in client.completions.create(prompt=prompts, n=2, stream=True, **wanted):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [c.text for c in done.choices]


def test_completion_logprobs(client: OpenAI, backend: SamplingBackend):
    done = client.completions.create(
        model=MODEL, prompt="The weather", seed=1, temperature=1.5, logprobs=2, max_tokens=20
    )
    choice = done.choices[0]
    assert choice.logprobs is not None
    tokens, offsets = choice.logprobs.tokens or [], choice.logprobs.text_offset or []
    assert len(tokens) == len(choice.logprobs.token_logprobs or []) == len(choice.logprobs.top_logprobs or [])
    assert "".join(tokens) == choice.text
    for token, offset in zip(tokens, offsets, strict=True):
        assert choice.text[offset:].startswith(token)
    assert all(len(top) == 2 for top in choice.logprobs.top_logprobs or [])


def test_max_tokens_of_a_completion_is_16_if_nothing_is_said(client: OpenAI, backend: SamplingBackend):
    client.completions.create(model=MODEL, prompt="a")
    assert backend.requests[-1].max_tokens == 16


# --- the async client ---------------------------------------------------------------------------


def test_many_at_once_with_the_async_client(address: str, client: OpenAI):
    expected = [text_of(client.chat.completions.create(**WILD | {"seed": i}).choices[0]) for i in range(8)]

    async def streamed(caller: AsyncOpenAI, seed: int) -> str:
        stream = await caller.chat.completions.create(**WILD | {"seed": seed}, stream=True)
        return joined([chunk async for chunk in stream])

    async def whole(caller: AsyncOpenAI, seed: int) -> str:
        return text_of((await caller.chat.completions.create(**WILD | {"seed": seed})).choices[0])

    async def run() -> list[str]:
        async with AsyncOpenAI(base_url=f"{address}/v1", api_key="key", max_retries=0) as caller:
            return await asyncio.gather(
                *(streamed(caller, i) for i in range(8)), *(whole(caller, i) for i in range(8))
            )

    assert asyncio.run(run()) == expected * 2


# --- what is refused ------------------------------------------------------------------------------

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"frequency_penalty": 0.5}, "frequency_penalty"),
    ({"presence_penalty": -1}, "presence_penalty"),
    ({"logit_bias": {"5": 1}}, "logit_bias"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"tool_choice": "required", "tools": [CALCULATOR]}, "tool_choice"),
    ({"parallel_tool_calls": False}, "parallel_tool_calls"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"repetition_penalty": 1.2}, "repetition_penalty"),
    ({"echo": True}, "echo"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_k": 0}, "top_k"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": 1.0}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 1, "max_completion_tokens": 1}, "max_tokens"),
    ({"seed": 2**64}, "seed"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", 3]}, "stop"),
    ({"stop": "\ud800"}, "stop"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": 2}, "logprobs"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
    ({"tools": [{"type": "function"}]}, "tools[0]"),
    ({"tools": {}}, "tools"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": [{"role": "king", "content": "a"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": "\udc00"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "assistant", "audio": {"id": "a"}}]}, "messages[0].audio"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]},
        "messages[0].tool_calls[0].function.arguments",
    ),
    ({"messages": [{"role": "user", "content": "word " * 2000}]}, "prompt"),
    ({"model": None}, "model"),
]


@pytest.mark.parametrize(("change", "param"), REFUSED, ids=lambda value: str(value)[:50])
def test_what_is_not_supported_is_refused_by_name(address: str, change: dict[str, Any], param: str):
    body = {"model": MODEL, "messages": SUM} | change
    answer = httpx.post(f"{address}/v1/chat/completions", content=json.dumps(body))
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("change", [{"temperature": -1}, {"top_p": 2}, {"stop": ""}])
def test_a_stream_that_cannot_begin_is_refused_with_a_status(client: OpenAI, change: dict[str, Any]):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**WILD | change, stream=True)
    assert refused.value.param == next(iter(change))


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[1], "a"]}, "prompt"),
        ({"prompt": [1, True]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [5000]}, "prompt"),
        ({"prompt": 3}, "prompt"),
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"messages": SUM}, "messages"),
    ],
    ids=str,
)
def test_completions_refuse_by_name(address: str, change: dict[str, Any], param: str):
    answer = httpx.post(f"{address}/v1/completions", json={"model": MODEL, "prompt": "a"} | change)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), error
    assert error["message"].startswith(param) or param in error["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"temperature": NaN}', b"\xff", b"[" * 100_000])
def test_what_is_no_json_object_is_refused(address: str, body: bytes):
    answer = httpx.post(f"{address}/v1/chat/completions", content=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "body")


def test_what_changes_nothing_is_passed_over(client: OpenAI):
    done = client.chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": "What is 12 + 30?"},
        ],
        temperature=0,
        user="me",
        metadata={"a": "b"},
        store=True,
        service_tier="auto",
        frequency_penalty=0,
        presence_penalty=0.0,
        logit_bias={},
        modalities=["text"],
        response_format={"type": "text"},
        parallel_tool_calls=True,
        tools=[],
        stop=None,
        n=None,
        seed=None,
        extra_body={"top_k": 5, "chat_template_kwargs": {"enable_thinking": False}},
    )
    assert done.choices[0].finish_reason == "stop"


def test_content_in_parts_is_one_text(client: OpenAI, backend: SamplingBackend):
    parts: Any = [{"type": "text", "text": "What is "}, {"type": "text", "text": "12 + 30?"}]
    client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": parts}], max_tokens=1)
    assert "What is 12 + 30?" in backend.tokenizer.decode(backend.requests[-1].prompt)


# --- the process --------------------------------------------------------------------------------


def test_the_api_imports_neither_torch_nor_transformers():
    script = (
        "import json, sys\n"
        "import tinker_engine.api.openai, tinker_engine.api.hub\n"
        "print(json.dumps([name for name in ('torch', 'transformers', 'numpy') if name in sys.modules]))"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert json.loads(output) == []
