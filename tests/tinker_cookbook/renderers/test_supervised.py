"""Which tokens are learned, and that what is learned is what sampling is asked for."""

import itertools
import logging
from collections.abc import Iterator

import pytest
import torch

from tests.tinker_cookbook.renderers.conversations import Conversation, conversations
from tests.tinker_cookbook.renderers.families import (
    BY_NAME,
    FAMILIES,
    NAMES,
    Family,
    controls_of,
    renderer_of,
    tokenizer_of,
)
from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.renderers import (
    Message,
    Renderer,
    TextPart,
    ThinkingPart,
    ToolCall,
    TrainOnWhat,
)
from tinker_cookbook.renderers.qwen3 import Qwen3Renderer

COUNT = 25


def cases(family: Family, count: int = COUNT, seed: int = 5) -> Iterator[Conversation]:
    for conversation in conversations(family.abilities, count, seed):
        for message in conversation.messages:
            if family.renderer_name in ("llama3", "role_colon"):
                message["content"] = str(message["content"])
        yield conversation


def trained_runs(weights: torch.Tensor) -> list[tuple[int, int]]:
    """First and last+1 of every run of ones."""
    edges = torch.diff(torch.cat([torch.zeros(1), weights, torch.zeros(1)])).nonzero().flatten().tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def question(text: str = "Well?") -> Message:
    return Message(role="user", content=text)


def answer(text: str = "Yes.", thinking: str = "") -> Message:
    if not thinking:
        return Message(role="assistant", content=text)
    parts = [ThinkingPart(type="thinking", thinking=thinking), TextPart(type="text", text=text)]
    return Message(role="assistant", content=parts)


def call(name: str = "f") -> Message:
    calls = [ToolCall(id="c", function=ToolCall.FunctionBody(name=name, arguments='{"a": 1}'))]
    return Message(role="assistant", content="", tool_calls=calls)


def result(text: str = "7") -> Message:
    return Message(role="tool", content=text, name="f", tool_call_id="c")


def stops_of(renderer: Renderer) -> set[int]:
    return {stop for stop in renderer.get_stop_sequences() if isinstance(stop, int)}


def text_of(renderer: Renderer, tokens: list[int]) -> str:
    return renderer.tokenizer.decode(tokens)


def trained_text(renderer: Renderer, messages: list[Message], what: TrainOnWhat) -> list[str]:
    tokens, weights = renderer.build_supervised_example(messages, what)
    return [text_of(renderer, tokens.to_ints()[a:b]) for a, b in trained_runs(weights)]


# --- the last answer --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_prompt_and_action_are_the_example(name):
    """What is not learned is the prompt that sampling is given; what is learned is one run that ends the turn."""
    family = BY_NAME[name]
    renderer = renderer_of(family)
    for conversation in cases(family):
        model_input, weights = renderer.build_supervised_example(conversation.messages)
        tokens = model_input.to_ints()
        assert weights.dtype == torch.float32
        assert weights.shape == (model_input.length,)
        assert all(chunk.length for chunk in model_input.chunks)
        ((begin, end),) = trained_runs(weights)
        assert end == len(tokens)
        assert tokens[:begin] == renderer.build_generation_prompt(conversation.messages[:-1]).to_ints()
        if stops := stops_of(renderer):
            assert tokens[-1] in stops
            assert stops.isdisjoint(tokens[begin:-1]) or family.renderer_name.startswith("gpt_oss")


@pytest.mark.parametrize("name", NAMES)
def test_no_empty_chunks(name):
    family = BY_NAME[name]
    renderer = renderer_of(family)
    messages = [question(""), answer(""), question("")]
    for model_input in (
        renderer.build_generation_prompt(messages),
        renderer.build_generation_prompt(messages, prefill=""),
        renderer.build_supervised_example([*messages, answer("")])[0],
    ):
        assert all(chunk.length for chunk in model_input.chunks)


@pytest.mark.parametrize("name", NAMES)
def test_prefill_follows_the_prompt(name):
    renderer = renderer_of(BY_NAME[name])
    prompt = renderer.build_generation_prompt([question()]).to_ints()
    with_prefill = renderer.build_generation_prompt([question()], prefill="Sure, ").to_ints()
    assert with_prefill == prompt + renderer.tokenizer.encode("Sure, ", add_special_tokens=False)


@pytest.mark.parametrize(
    ("name", "prefill"),
    [
        ("qwen3_disable_thinking", "<think>\n\n</think>\n\n"),
        ("qwen3_5", "<think>\n"),
        ("qwen3_5_disable_thinking", "<think>\n\n</think>\n\n"),
        ("deepseekv3", "<｜Assistant｜></think>"),
        ("deepseekv3_thinking", "<｜Assistant｜><think>"),
    ],
)
def test_what_the_prompt_says_of_the_answer_is_not_learned(name, prefill):
    renderer = renderer_of(BY_NAME[name])
    prompt = renderer.build_generation_prompt([question()])
    assert text_of(renderer, prompt.to_ints()).endswith(prefill)
    for what in (TrainOnWhat.LAST_ASSISTANT_MESSAGE, TrainOnWhat.LAST_ASSISTANT_TURN):
        _, weights = renderer.build_supervised_example([question(), answer()], what)
        assert not weights[: prompt.length].any()
        assert weights[prompt.length :].all()


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_5_disable_thinking"])
def test_nor_in_the_second_answer_of_a_turn(name):
    renderer = renderer_of(BY_NAME[name])
    texts = trained_text(renderer, [question(), call(), result(), answer()], TrainOnWhat.LAST_ASSISTANT_TURN)
    assert len(texts) == 2
    assert not any(text.startswith("<think>") for text in texts)


# --- other modes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [f.name for f in FAMILIES if f.tools])
def test_last_turn_is_learned_without_results(name):
    renderer = renderer_of(BY_NAME[name])
    messages = [
        question("q1"),
        answer("a1"),
        question("q2"),
        call("toolname"),
        result("result"),
        answer("a2"),
    ]
    texts = trained_text(renderer, messages, TrainOnWhat.LAST_ASSISTANT_TURN)
    assert len(texts) == 2
    assert "toolname" in texts[0]
    assert "a2" in texts[1]
    joined = "".join(texts)
    assert not any(word in joined for word in ("q1", "a1", "q2", "result"))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("what", "learned"),
    [
        (TrainOnWhat.LAST_ASSISTANT_MESSAGE, {"a2"}),
        (TrainOnWhat.LAST_ASSISTANT_TURN, {"a2"}),
        (TrainOnWhat.ALL_ASSISTANT_MESSAGES, {"a1", "a2"}),
        (TrainOnWhat.ALL_MESSAGES, {"s0", "q1", "a1", "q2", "a2"}),
        (TrainOnWhat.ALL_USER_AND_SYSTEM_MESSAGES, {"s0", "q1", "q2"}),
        (TrainOnWhat.ALL_TOKENS, {"s0", "q1", "a1", "q2", "a2"}),
    ],
)
def test_modes(name, what, learned):
    family = BY_NAME[name]
    renderer = renderer_of(family)
    words = {"s0": "system", "q1": "user", "a1": "assistant", "q2": "user", "a2": "assistant"}
    messages = [Message(role=role, content=word) for word, role in words.items()]
    joined = "|".join(trained_text(renderer, messages, what))
    assert {word for word in words if word in joined} == learned
    begins = {"<|im_start|>", "<|start_header_id|>", "<｜User｜>", "<｜Assistant｜>", "<|start|>"}
    tokens, weights = renderer.build_supervised_example(messages, what)
    headers = {n for text, n in controls_of(family).items() if text in begins}
    learned_tokens = {t for t, w in zip(tokens.to_ints(), weights.tolist(), strict=True) if w}
    if what is TrainOnWhat.ALL_TOKENS:
        bos = len(renderer._bos_tokens)
        assert not weights[:bos].any()
        assert weights[bos:].all()
    else:
        assert headers.isdisjoint(learned_tokens)


@pytest.mark.parametrize("name", NAMES)
def test_customized(name):
    renderer = renderer_of(BY_NAME[name])
    words = ["q1", "a1", "q2", "a2"]
    roles = ["user", "assistant", "user", "assistant"]
    messages = [
        Message(role=role, content=word, trainable=word in ("a1", "q2"))
        for role, word in zip(roles, words, strict=True)
    ]
    joined = "|".join(trained_text(renderer, messages, TrainOnWhat.CUSTOMIZED))
    assert {word for word in words if word in joined} == {"a1", "q2"}
    assert "SmolLM" not in joined
    assert "ChatGPT" not in joined


@pytest.mark.parametrize("name", NAMES)
def test_trainable_is_for_customized_alone(name):
    renderer = renderer_of(BY_NAME[name])
    with pytest.raises(RendererError, match="every message"):
        renderer.build_supervised_example(
            [question(), {**answer(), "trainable": True}], TrainOnWhat.CUSTOMIZED
        )
    with pytest.raises(RendererError, match="CUSTOMIZED"):
        renderer.build_supervised_example([question(), {**answer(), "trainable": True}])


@pytest.mark.parametrize("name", NAMES)
def test_a_question_teaches_nothing(name):
    _, weights = renderer_of(BY_NAME[name]).build_supervised_example([question(), answer(), question()])
    assert weights.dtype == torch.float32
    assert not weights.any()


@pytest.mark.parametrize("name", [f.name for f in FAMILIES if renderer_of(f).disables_thinking])
def test_no_thinking_where_it_is_disabled(name):
    """The turn is refused; DeepSeek's template takes thinking out of every answer instead."""
    renderer = renderer_of(BY_NAME[name])
    for what in (TrainOnWhat.LAST_ASSISTANT_MESSAGE, TrainOnWhat.LAST_ASSISTANT_TURN):
        for reasoned in (answer("Yes.", "ponder"), answer("ponder</think>Yes.")):
            if name.startswith("deepseek"):
                tokens, _ = renderer.build_supervised_example([question(), reasoned], what)
                assert "ponder" not in text_of(renderer, tokens.to_ints())
            else:
                with pytest.raises(RendererError, match="thinking"):
                    renderer.build_supervised_example([question(), reasoned], what)


# --- prompts that extend each other --------------------------------------------------------------------------


def prompts_and_next(family: Family, renderer: Renderer, seed: int) -> Iterator[tuple[list[int], list[int]]]:
    """Prompts of successive answers, in conversations of five turns and more."""
    pieces = list(cases(family, 5, seed))
    messages = [m for c in pieces for m in c.messages if m["role"] != "system"]
    at = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    prompts = [renderer.build_generation_prompt(messages[:i]).to_ints() for i in at]
    yield from itertools.pairwise(prompts)


@pytest.mark.parametrize("name", NAMES)
def test_extension_property_is_true(name):
    family = BY_NAME[name]
    renderer = renderer_of(family)
    pairs = [pair for seed in range(6) for pair in prompts_and_next(family, renderer, seed)]
    assert len(pairs) >= 24
    held = [later[: len(prompt)] == prompt for prompt, later in pairs]
    assert all(held) == renderer.has_extension_property


def test_keeping_thinking_makes_qwen3_extend():
    family = BY_NAME["qwen3"]
    renderer = Qwen3Renderer(tokenizer_of(family), strip_thinking_from_history=False)
    assert renderer.has_extension_property
    for prompt, later in prompts_and_next(family, renderer, 0):
        assert later[: len(prompt)] == prompt


@pytest.mark.parametrize("name", [f.name for f in FAMILIES if renderer_of(f).has_extension_property])
def test_a_sampled_answer_extends_its_prompt(name):
    """The next prompt begins with this prompt and the very tokens that were sampled."""
    family = BY_NAME[name]
    renderer = renderer_of(family)
    for conversation in cases(family, 15, seed=9):
        example, _ = renderer.build_supervised_example(conversation.messages)
        tokens = example.to_ints()
        if name == "role_colon":
            tokens = tokens[: -len(renderer.tokenizer.encode("User:", add_special_tokens=False))]
        prompt = renderer.build_generation_prompt([*conversation.messages, question("And?")]).to_ints()
        assert prompt[: len(tokens)] == tokens


@pytest.mark.parametrize("name", NAMES)
def test_one_example_or_one_for_each_answer(name):
    family = BY_NAME[name]
    renderer = renderer_of(family)
    messages = [question("q1"), answer("a1"), question("q2"), answer("a2")]
    what = TrainOnWhat.ALL_ASSISTANT_MESSAGES
    examples = renderer.build_supervised_examples(messages, what)
    if renderer.has_extension_property:
        ((tokens, weights),) = examples
        whole, whole_weights = renderer.build_supervised_example(messages, what)
        assert tokens == whole
        assert torch.equal(weights, whole_weights)
        return
    assert len(examples) == 2
    for (tokens, weights), end in zip(examples, (2, 4), strict=True):
        whole, whole_weights = renderer.build_supervised_example(messages[:end])
        assert tokens == whole
        assert torch.equal(weights, whole_weights)
    assert len(renderer.build_supervised_examples(messages)) == 1, "the last turn has one answer"
    with pytest.raises(NotImplementedError, match="last_assistant_turn"):
        renderer.build_supervised_examples(messages, TrainOnWhat.ALL_TOKENS)


@pytest.mark.parametrize("name", NAMES)
def test_warning_where_one_example_is_not_what_was_sampled(name, caplog):
    renderer = renderer_of(BY_NAME[name])
    with caplog.at_level(logging.WARNING):
        renderer.build_supervised_example([question(), answer()], TrainOnWhat.ALL_ASSISTANT_MESSAGES)
    assert bool(caplog.records) != renderer.has_extension_property
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        renderer.build_supervised_example([question(), answer()], TrainOnWhat.LAST_ASSISTANT_TURN)
        assert not caplog.records, "one answer is as it was sampled"
        renderer.build_supervised_example([question(), answer(), answer()], TrainOnWhat.LAST_ASSISTANT_TURN)
    assert bool(caplog.records) != renderer.has_extension_property


# --- families -----------------------------------------------------------------------------------------------


def test_role_colon_learns_where_to_stop():
    renderer = renderer_of(BY_NAME["role_colon"])
    messages = [question("q1"), answer("a1"), question("q2"), answer("a2")]
    assert (
        text_of(renderer, renderer.build_generation_prompt(messages[:1]).to_ints())
        == "<s>User: q1\n\nAssistant:"
    )
    assert trained_text(renderer, messages, TrainOnWhat.ALL_ASSISTANT_MESSAGES) == [" a1\n\n", " a2\n\nUser:"]


def test_qwen3_frames_the_last_answer():
    renderer = renderer_of(BY_NAME["qwen3"])
    messages = [question("q1"), answer("a1", "t1"), question("q2"), answer("a2")]
    tokens, _ = renderer.build_supervised_example(messages)
    text = text_of(renderer, tokens.to_ints())
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\na2<|im_end|>")
    assert "<|im_start|>assistant\na1<|im_end|>" in text
    assert trained_text(renderer, messages, TrainOnWhat.LAST_ASSISTANT_MESSAGE) == [
        "<think>\n\n</think>\n\na2<|im_end|>"
    ]
    every = Qwen3Renderer(renderer.tokenizer, strip_thinking_from_history=False)
    text = text_of(every, every.build_supervised_example(messages)[0].to_ints())
    assert "<think>\nt1\n</think>\n\na1<|im_end|>" in text


def test_qwen3_without_thinking_answers_users():
    with pytest.raises(RendererError, match="no user message"):
        renderer_of(BY_NAME["qwen3_disable_thinking"]).build_supervised_example([answer()])


def test_qwen3_instruct_writes_no_tags_by_itself():
    renderer = renderer_of(BY_NAME["qwen3_instruct"])
    tokens = renderer.build_supervised_example([question(), answer(), question(), answer()])[0].to_ints()
    assert "think" not in text_of(renderer, tokens)
    text_first = Message(
        role="assistant",
        content=[TextPart(type="text", text="a"), ThinkingPart(type="thinking", thinking="b")],
    )
    assert trained_text(renderer, [question(), text_first], TrainOnWhat.LAST_ASSISTANT_MESSAGE) == [
        "a<think>b</think><|im_end|>"
    ]


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith("qwen3")])
def test_qwen_results_share_a_message(name):
    renderer = renderer_of(BY_NAME[name])
    prompt = renderer.build_generation_prompt([question(), call(), result("r1"), result("r2")]).to_ints()
    assert (
        "<|im_end|>\n<|im_start|>user\n<tool_response>\nr1\n</tool_response>\n<tool_response>\nr2\n</tool_response>"
        "<|im_end|>\n<|im_start|>assistant\n"
    ) in text_of(renderer, prompt)


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_5_disable_thinking"])
def test_qwen3_5_trims_a_text_and_not_its_parts(name):
    renderer = renderer_of(BY_NAME[name])
    parts = [TextPart(type="text", text=" Hello "), TextPart(type="text", text="world. ")]
    for role in ("user", "assistant"):
        messages = [question(), Message(role=role, content=[*parts])]
        tokens = renderer.build_supervised_example(messages)[0].to_ints()
        assert text_of(renderer, tokens).endswith("\nHello world.<|im_end|>")


@pytest.mark.parametrize("name", ["deepseekv3", "deepseekv3_thinking"])
def test_deepseek(name):
    renderer = renderer_of(BY_NAME[name])
    messages = [Message(role="system", content="s"), question("q"), call(), result("r"), answer("a")]
    tokens = renderer.build_supervised_example(messages)[0].to_ints()
    text = text_of(renderer, tokens)
    assert tokens.count(renderer._bos_tokens[0]) == 1
    assert text.startswith("<｜begin▁of▁sentence｜>s<｜User｜>q<｜Assistant｜>")
    assert "<｜tool▁calls▁end｜><｜end▁of▁sentence｜><｜tool▁output▁begin｜>r<｜tool▁output▁end｜>" in text
    assert text.endswith("<｜tool▁output▁end｜>a<｜end▁of▁sentence｜>")
    after_result = renderer.build_generation_prompt(messages[:-1]).to_ints()
    assert text_of(renderer, after_result).endswith("<｜tool▁output▁end｜>")
    assert trained_text(renderer, messages[:3], TrainOnWhat.LAST_ASSISTANT_MESSAGE)[0].endswith(
        "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>"
    )
    with pytest.raises(RendererError, match="system_role_as_user"):
        renderer.build_generation_prompt([question(), messages[0]])


def test_deepseek_late_system_messages():
    from tinker_cookbook.renderers.deepseek_v3 import DeepSeekV3DisableThinkingRenderer

    renderer = DeepSeekV3DisableThinkingRenderer(
        tokenizer_of(BY_NAME["deepseekv3"]), system_role_as_user=True
    )
    late = [question("q"), answer("a"), Message(role="system", content="s")]
    assert "<｜User｜>s<｜Assistant｜>" in text_of(renderer, renderer.build_generation_prompt(late).to_ints())


def test_deepseek_thinks_an_empty_thought():
    renderer = renderer_of(BY_NAME["deepseekv3_thinking"])
    tokens = renderer.build_supervised_example([question("q"), answer("a")])[0].to_ints()
    assert text_of(renderer, tokens).endswith("<｜Assistant｜><think></think>a<｜end▁of▁sentence｜>")


def test_gpt_oss_channels_and_ends():
    renderer = renderer_of(BY_NAME["gpt_oss_no_sysprompt"])
    asked = answer("c", "t2")
    asked["tool_calls"] = [*call().get("tool_calls", [])]
    messages = [question("q1"), answer("a1", "t1"), question("q2"), asked, result()]
    text = text_of(renderer, renderer.build_supervised_example([*messages, answer("a2", "t3")])[0].to_ints())
    assert text == (
        "<|start|>user<|message|>q1<|end|><|start|>assistant<|channel|>final<|message|>a1<|end|>"
        "<|start|>user<|message|>q2<|end|><|start|>assistant<|channel|>analysis<|message|>t2<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>c<|end|>"
        "<|start|>assistant to=functions.f<|channel|>commentary <|constrain|>json<|message|>"
        '{"a": 1}<|call|><|start|>functions.f to=assistant<|channel|>commentary<|message|>7<|end|>'
        "<|start|>assistant<|channel|>analysis<|message|>t3<|end|>"
        "<|start|>assistant<|channel|>final<|message|>a2<|return|>"
    )
    assert len(renderer.get_stop_sequences()) == 2
    later = renderer.build_generation_prompt([*messages, answer("a2", "t3"), question("q3")]).to_ints()
    assert "analysis" not in text_of(renderer, later)


def test_gpt_oss_dates():
    from tinker_cookbook.renderers.gpt_oss import GptOssRenderer

    tokenizer = tokenizer_of(BY_NAME["gpt_oss_low_reasoning"])
    renderer = GptOssRenderer(tokenizer, True, "low", "2025-01-02")
    text = text_of(renderer, renderer.build_generation_prompt([question()]).to_ints())
    assert "Current date: 2025-01-02\n" in text
    assert "Reasoning: low" in text
    with pytest.raises(RendererError, match="low, medium or high"):
        GptOssRenderer(tokenizer, True, "extreme")


def test_gpt_oss_empty_instructions_before_its_own_system_message():
    renderer = renderer_of(BY_NAME["gpt_oss_low_reasoning"])
    empty = Message(role="system", content="")
    own = Message(role="harmony_system", content="x")
    assert renderer.build_generation_prompt([empty, own, question()]) == renderer.build_generation_prompt(
        [question()]
    )


def test_llama3_is_text_alone():
    renderer = renderer_of(BY_NAME["llama3"])
    for content in (
        [TextPart(type="text", text="a"), TextPart(type="text", text="b")],
        [ThinkingPart(type="thinking", thinking="t")],
    ):
        with pytest.raises(RendererError):
            renderer.build_generation_prompt([question(), Message(role="assistant", content=[*content])])
    with pytest.raises(RendererError, match="tools"):
        renderer.build_generation_prompt([question(), call()])
    with pytest.raises(NotImplementedError):
        renderer.create_conversation_prefix_with_tools([{"name": "f", "description": "", "parameters": {}}])


@pytest.mark.parametrize("name", NAMES)
def test_pictures_are_refused_where_there_are_none(name):
    picture = Message(role="user", content=[{"type": "image", "image": "https://example.com/x.png"}])
    with pytest.raises(RendererError):
        renderer_of(BY_NAME[name]).build_generation_prompt([picture])
    with pytest.raises(RendererError):
        renderer_of(BY_NAME[name]).build_generation_prompt([question(), {**picture, "role": "assistant"}])


@pytest.mark.parametrize("name", NAMES)
def test_messages_are_not_changed(name):
    family = BY_NAME[name]
    renderer = renderer_of(family)
    for conversation in cases(family, 5):
        before = str(conversation.messages)
        renderer.build_supervised_example(conversation.messages)
        renderer.build_generation_prompt(conversation.messages)
        assert str(conversation.messages) == before
