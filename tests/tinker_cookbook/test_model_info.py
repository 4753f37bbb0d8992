import json
import logging
import pickle

import pytest

from tinker_cookbook import model_info
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.model_info import ModelAttributes, UnknownModelError, get_recommended_renderer_names

CHATML = "{{ '<|im_start|>' + message.role }}"
QWEN3 = CHATML + "<tool_response>"


@pytest.mark.parametrize(
    ("model", "renderers"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", ["llama3"]),
        ("meta-llama/Llama-3.2-1B", ["role_colon"]),
        ("Qwen/Qwen3-8B", ["qwen3", "qwen3_disable_thinking"]),
        ("Qwen/Qwen3-8B-Base", ["role_colon"]),
        ("Qwen/Qwen3-4B-Instruct-2507", ["qwen3_instruct"]),
        ("Qwen/Qwen3.6-27B", ["qwen3_5", "qwen3_5_disable_thinking"]),
        ("openai/gpt-oss-20b", ["gpt_oss_no_sysprompt", "gpt_oss_medium_reasoning"]),
        ("deepseek-ai/DeepSeek-V3.1", ["deepseekv3", "deepseekv3_thinking"]),
        ("deepseek-ai/DeepSeek-V3.1-Base", ["role_colon"]),
        ("thinkingmachines/Inkling-Small", ["tml_v0"]),
        ("Qwen/Qwen3-8B:peft:131072", ["qwen3", "qwen3_disable_thinking"]),
        ("tinker-engine/tiny-chat", ["chatml"]),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", ["smollm2", "chatml"]),
        ("HuggingFaceTB/SmolLM2-135M", ["role_colon"]),
    ],
)
def test_models_of_the_table(model, renderers):
    assert get_recommended_renderer_names(model) == renderers
    assert model_info.get_recommended_renderer_name(model) == renderers[0]
    assert model_info.get_model_attributes(model).is_chat == (renderers != ["role_colon"])


@pytest.mark.parametrize(
    "table",
    [
        model_info.get_llama_info,
        model_info.get_qwen_info,
        model_info.get_deepseek_info,
        model_info.get_gpt_oss_info,
        model_info.get_moonshot_info,
        model_info.get_nvidia_info,
    ],
)
def test_every_model_of_a_table_is_found_by_its_full_name(table):
    for name, attributes in table().items():
        assert model_info.get_model_attributes(f"{attributes.organization}/{name}") == attributes
        assert attributes.recommended_renderers


def test_what_a_model_takes_in():
    assert model_info.get_model_attributes("Qwen/Qwen3.5-4B").is_vl
    assert not model_info.get_model_attributes("Qwen/Qwen3-8B").is_vl
    assert model_info.get_model_attributes("thinkingmachines/Inkling").is_audio_in


@pytest.mark.parametrize("name", ["no-slash", "nobody/nothing", "Qwen/Qwen9"])
def test_every_unknown_model_is_one_kind_of_error_and_readable(name):
    with pytest.raises(UnknownModelError) as caught:
        model_info.get_model_attributes(name)
    error = caught.value
    assert isinstance(error, ConfigurationError)
    assert isinstance(error, ValueError)
    assert isinstance(error, KeyError)
    assert str(error).startswith(f"nothing is known about the model {name!r}")
    assert "register_model" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_model_of_ones_own_can_be_registered(monkeypatch):
    monkeypatch.setattr(model_info, "_registered", {})
    mine = ModelAttributes("me", "1", "7B", True, ("llama3",))
    model_info.register_model("me/mine", mine)
    assert model_info.get_model_attributes("me/mine") == mine
    assert model_info.get_model_attributes("me/mine:peft:1024") == mine


@pytest.mark.parametrize(
    ("model_type", "template", "renderer"),
    [
        ("llama", CHATML, "chatml"),
        ("llama", "{{ '<|start_header_id|>' }}", "llama3"),
        ("llama", None, "role_colon"),
        ("qwen2", CHATML + "<tool_call><tool_response>", "chatml"),
        ("qwen3", QWEN3 + "enable_thinking <think>", "qwen3"),
        ("qwen3_moe", QWEN3 + "<think>", "qwen3_instruct"),
        ("qwen3_vl", QWEN3 + "<|vision_start|>", "qwen3_vl_instruct"),
        ("qwen3_5", QWEN3 + "<function= enable_thinking <|vision_start|>", "qwen3_5"),
        ("qwen3_5", QWEN3 + "<function= enable_thinking reasoning_effort", "qwen3_8_xhigh_reasoning"),
        ("smollm3", QWEN3 + "enable_thinking <think>", "chatml"),
        ("deepseek_v3", "<｜User｜>", "deepseekv3"),
        ("gpt_oss", "<|start|><|channel|>", "gpt_oss_no_sysprompt"),
        ("kimi_k2", "<|im_user|><|im_middle|>", "kimi_k2"),
        ("nemotron_h", CHATML + "truncate_history_thinking <function=", "nemotron3"),
    ],
)
def test_the_chat_template_of_a_folder_tells_the_renderer(tmp_path, model_type, template, renderer):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    settings = {} if template is None else {"chat_template": template}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    found = model_info.get_model_attributes(str(tmp_path))
    assert found.recommended_renderers[0] == renderer
    assert found.is_chat == (template is not None)


def test_a_template_nobody_knows_is_an_error_and_no_guess(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "chat_template.jinja").write_text("[INST]{{ message.content }}[/INST]")
    with pytest.raises(UnknownModelError, match="renderer_name"):
        model_info.get_model_attributes(str(tmp_path))


def test_the_files_of_the_tiny_model_say_what_the_table_says():
    from tinker_engine.model import tiny

    assert get_recommended_renderer_names(str(tiny.FOLDER)) == get_recommended_renderer_names(tiny.NAME)


def test_a_renderer_of_another_family_is_warned_about(caplog):
    with caplog.at_level(logging.WARNING):
        model_info.warn_if_renderer_not_recommended("Qwen/Qwen3-8B", "qwen3_disable_thinking")
        model_info.warn_if_renderer_not_recommended("Qwen/Qwen3-8B", None)
        model_info.warn_if_renderer_not_recommended("nobody/nothing", "llama3")
        assert not caplog.records
        model_info.warn_if_renderer_not_recommended("Qwen/Qwen3-8B", "llama3")
    assert "llama3 is not recommended for Qwen/Qwen3-8B" in caplog.text
