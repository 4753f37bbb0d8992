"""Renderers by name, by hand, and in another process."""

import inspect
import logging
import pickle
import subprocess
import sys

import pytest
import tinker

from tests.tinker_cookbook.renderers.families import BY_NAME, FAMILIES, NAMES, TINY, renderer_of, tokenizer_of
from tests.tinker_cookbook.renderers.small_tokenizers import small_tokenizer
from tinker_cookbook import tokenizer_utils
from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.renderers import (
    Message,
    ParseTermination,
    RenderContext,
    Renderer,
    TrainOnWhat,
    get_registered_renderer_names,
    get_renderer,
    is_renderer_registered,
    register_renderer,
    unregister_renderer,
)
from tinker_cookbook.renderers.base import RenderedMessage, parse_response_for_stop_token
from tinker_cookbook.renderers.chatml import ChatMLRenderer
from tinker_cookbook.renderers.registry import BUILT_IN

CONVERSATION = [
    Message(role="user", content="Hi"),
    Message(role="assistant", content="Ho"),
    Message(role="user", content="Hum"),
]


class ByHand(Renderer):
    """The least that a renderer must say."""

    def get_stop_sequences(self) -> list[int]:
        return self.tokenizer.encode("\n", add_special_tokens=False)

    def render_message(self, message: Message, ctx: RenderContext) -> RenderedMessage:
        def chunk(text: str) -> tinker.EncodedTextChunk:
            return tinker.EncodedTextChunk(tokens=self.tokenizer.encode(text, add_special_tokens=False))

        return RenderedMessage(
            header=chunk(f"{message['role'][0]}>"),
            output=[chunk(str(message["content"])), chunk("\n")],
        )

    def parse_response(self, response: list[int]) -> tuple[Message, ParseTermination]:
        return parse_response_for_stop_token(response, self.tokenizer, self.get_stop_sequences()[0])


def test_by_hand():
    tokenizer = tokenizer_of(BY_NAME["llama3"])
    renderer = ByHand(tokenizer)
    prompt = renderer.build_generation_prompt(CONVERSATION, prefill="So")
    assert tokenizer.decode(prompt.to_ints()) == "u>Hi\na>Ho\nu>Hum\na>So"
    whole = [*CONVERSATION, Message(role="assistant", content="")]
    tokens, weights = renderer.build_supervised_example(whole)
    assert tokenizer.decode(tokens.to_ints()) == "u>Hi\na>Ho\nu>Hum\na>\n"
    assert weights.tolist() == [0.0] * (tokens.length - 1) + [1.0]
    assert all(chunk.length for chunk in tokens.chunks)
    assert len(renderer.build_supervised_examples(whole, TrainOnWhat.ALL_ASSISTANT_MESSAGES)) == 2
    message, termination = renderer.parse_response(tokenizer.encode("Ho\n", add_special_tokens=False))
    assert (message["content"], termination) == ("Ho", ParseTermination.STOP_SEQUENCE)
    assert renderer.to_openai_message(message) == {"role": "assistant", "content": "Ho"}
    assert not renderer.has_extension_property
    with pytest.raises(NotImplementedError):
        next(renderer.parse_response_streaming([]))
    with pytest.raises(NotImplementedError):
        renderer.create_conversation_prefix_with_tools([])
    with pytest.raises(pickle.PicklingError, match="get_renderer"):
        pickle.dumps(renderer)


def test_by_hand_on_a_tokenizer_of_ones_own():
    class Letters:
        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            return [ord(letter) for letter in text]

        def decode(self, tokens: list[int]) -> str:
            return "".join(map(chr, tokens))

    prompt = ByHand(Letters()).build_generation_prompt(CONVERSATION, prefill="So")
    assert Letters().decode(prompt.to_ints()) == "u>Hi\na>Ho\nu>Hum\na>So"


@pytest.fixture
def named_tokenizer():
    tokenizer_utils.register_tokenizer("test/small", lambda: tokenizer_of(BY_NAME["llama3"]))
    yield "test/small"
    tokenizer_utils.unregister_tokenizer("test/small")


def test_registering(named_tokenizer):
    tokenizer = tokenizer_of(BY_NAME["llama3"])
    assert not is_renderer_registered("llama3")
    register_renderer("llama3", lambda tokenizer, image_processor: ByHand(tokenizer))
    try:
        assert is_renderer_registered("llama3")
        assert get_registered_renderer_names() == ["llama3"]
        renderer = get_renderer("llama3", tokenizer, model_name=named_tokenizer)
        assert isinstance(renderer, ByHand), "one of the user's comes before ours"
        again = pickle.loads(pickle.dumps(renderer))
        assert isinstance(again, ByHand)
    finally:
        assert unregister_renderer("llama3")
    assert not unregister_renderer("llama3")
    assert not isinstance(get_renderer("llama3", tokenizer), ByHand)


def test_a_custom_renderer_is_unpickled_only_where_it_is_registered(named_tokenizer):
    register_renderer("mine", lambda tokenizer, image_processor: ByHand(tokenizer))
    data = pickle.dumps(get_renderer("mine", tokenizer_of(BY_NAME["llama3"]), model_name=named_tokenizer))
    unregister_renderer("mine")
    with pytest.raises(RendererError, match="mine"):
        pickle.loads(data)


def test_unknown_name():
    with pytest.raises(RendererError, match=r"'qwen4'.*qwen3_5"):
        get_renderer("qwen4", tokenizer_of(BY_NAME["qwen3"]))


def test_the_names_are_documented():
    documented = inspect.getsource(get_renderer)
    assert all(name in documented for name in BUILT_IN)
    assert set(BUILT_IN) == {family.renderer_name for family in FAMILIES}


@pytest.mark.parametrize("name", NAMES)
def test_pickling(name):
    family = BY_NAME[name]
    tokenizer_utils.register_tokenizer("test/own", lambda: tokenizer_of(family))
    try:
        renderer = get_renderer(family.renderer_name, tokenizer_of(family), model_name="test/own")
        again = pickle.loads(pickle.dumps(renderer))
    finally:
        tokenizer_utils.unregister_tokenizer("test/own")
    assert type(again) is type(renderer)
    assert again.build_generation_prompt(CONVERSATION) == renderer.build_generation_prompt(CONVERSATION)
    assert pickle.dumps(again) == pickle.dumps(renderer)


def test_pickling_into_another_process(tmp_path):
    renderer = get_renderer("chatml", tokenizer_utils.get_tokenizer(TINY))
    (tmp_path / "renderer").write_bytes(pickle.dumps(renderer))
    program = (
        "import pickle, sys; renderer = pickle.load(open(sys.argv[1], 'rb'));"
        "print(renderer.build_generation_prompt([{'role': 'user', 'content': 'Hi'}]).to_ints())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "renderer")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(renderer.build_generation_prompt(CONVERSATION[:1]).to_ints())


@pytest.mark.parametrize("name", [n for n in NAMES if n != "role_colon"])
def test_a_tokenizer_of_another_family(name):
    """Also one that lacks only what begins a message: its messages would run together as text."""
    family = BY_NAME[name]
    renderer = renderer_of(family)
    tokenizer = renderer.tokenizer
    stop = tokenizer.convert_ids_to_tokens([int(s) for s in renderer.get_stop_sequences()])
    for controls in (["<a>", "<b>"], [*stop, "<think>", "</think>"]):
        with pytest.raises(RendererError, match=r"has no token '<.*get_recommended_renderer_name"):
            get_renderer(family.renderer_name, small_tokenizer(controls))


def test_made_by_hand_is_not_pickled():
    with pytest.raises(pickle.PicklingError, match="made by hand"):
        pickle.dumps(ChatMLRenderer(tokenizer_of(BY_NAME["chatml"])))
    with pytest.raises(pickle.PicklingError):
        pickle.dumps(get_renderer("chatml", tokenizer_of(BY_NAME["chatml"])))  # has no name to be found by


@pytest.mark.parametrize("name", [f.name for f in FAMILIES if f.tools and f.renderer_name != "role_colon"])
def test_calls_spelled_in_text_are_warned_of_once(name, caplog):
    if name.startswith("gpt_oss"):
        pytest.skip("its calls are messages")
    renderer = get_renderer(BY_NAME[name].renderer_name, tokenizer_of(BY_NAME[name]))
    tag = "<｜tool▁call▁begin｜>" if name.startswith("deepseek") else "<tool_call>"
    answer = Message(role="assistant", content=f"{tag}x")
    with caplog.at_level(logging.WARNING):
        renderer.build_generation_prompt([CONVERSATION[0], answer, answer])
    assert len(caplog.records) == 1
