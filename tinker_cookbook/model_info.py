"""What is known about models by name, above all which renderers write their conversations.

A name is looked for in this order: registered by the user, the table below, the files of a model on this machine.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.local_models import find_folder, read_chat_template, read_config, without_variant

__all__ = [
    "ModelAttributes",
    "UnknownModelError",
    "get_deepseek_info",
    "get_gpt_oss_info",
    "get_llama_info",
    "get_model_attributes",
    "get_moonshot_info",
    "get_nvidia_info",
    "get_qwen_info",
    "get_recommended_renderer_name",
    "get_recommended_renderer_names",
    "register_model",
    "warn_if_renderer_not_recommended",
]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelAttributes:
    """What is known about a model."""

    organization: str  # "Qwen"
    version_str: str  # "3.5"; "" if its files do not say
    size_str: str  # "30B-A3B"; "" if its files do not say
    is_chat: bool  # trained to converse; a base model continues text
    recommended_renderers: tuple[str, ...]  # the first is the default
    is_vl: bool = False  # takes images
    is_audio_in: bool = False  # takes sound


class UnknownModelError(ConfigurationError, KeyError):
    """Nothing is known about a model of this name."""

    __str__ = Exception.__str__  # KeyError would show the repr of the message


_registered: dict[str, ModelAttributes] = {}


def register_model(name: str, attributes: ModelAttributes) -> None:
    """Makes a model of your own known. Comes before the table, so that it can also correct it."""
    _registered[name] = attributes


def get_model_attributes(model_name: str) -> ModelAttributes:
    """What is known about the model of this name; UnknownModelError if nothing is."""
    name = without_variant(model_name)
    known = _registered.get(model_name) or _registered.get(name) or _in_table(name)
    if known is not None:
        return known
    folder = find_folder(name)
    if folder is None:
        raise UnknownModelError(
            f"nothing is known about the model {model_name!r}, and it is not on this machine. If the name is right, do "
            f"one of these: name the renderer yourself (renderer_name=...); type: tinker-engine pull {name}; give the "
            "path of a folder that has its files; or call model_info.register_model"
        )
    return _from_files(name, folder)


def get_recommended_renderer_names(model_name: str) -> list[str]:
    """Renderers that write conversations as the model was taught, the default first."""
    return list(get_model_attributes(model_name).recommended_renderers)


def get_recommended_renderer_name(model_name: str) -> str:
    """The renderer to use unless there is a reason for another."""
    return get_model_attributes(model_name).recommended_renderers[0]


def warn_if_renderer_not_recommended(model_name: str, renderer_name: str | None) -> None:
    """Says nothing about a model that is not known: there is nothing to compare with."""
    if renderer_name is None:
        return
    try:
        recommended = get_recommended_renderer_names(model_name)
    except UnknownModelError:
        return
    if renderer_name not in recommended:
        logger.warning(
            "the renderer %s is not recommended for %s, which was trained with another format; recommended: %s",
            renderer_name,
            model_name,
            ", ".join(recommended),
        )


# --- the table --------------------------------------------------------------------------------------------

_BASE = ("role_colon",)
_QWEN3 = ("qwen3", "qwen3_disable_thinking")
_QWEN3_5 = ("qwen3_5", "qwen3_5_disable_thinking")
_QWEN3_8 = (
    "qwen3_8_xhigh_reasoning",
    "qwen3_8_disable_thinking",
    "qwen3_8_medium_reasoning",
    "qwen3_8_low_reasoning",
)
_DEEPSEEK = ("deepseekv3", "deepseekv3_thinking")
_GPT_OSS = ("gpt_oss_no_sysprompt", "gpt_oss_medium_reasoning")
_KIMI_K26 = ("kimi_k26", "kimi_k26_disable_thinking", "kimi_k26_preserve_thinking")
_NEMOTRON = ("nemotron3", "nemotron3_disable_thinking", "nemotron3_preserve_thinking")
_ULTRA = (
    "nemotron3_ultra",
    "nemotron3_ultra_disable_thinking",
    "nemotron3_ultra_medium_thinking",
    "nemotron3_ultra_preserve_thinking",
)
_LIGHTNING = ("nemotron3_ultra", "nemotron3_ultra_disable_thinking", "nemotron3_ultra_preserve_thinking")


def get_llama_info() -> dict[str, ModelAttributes]:
    """The models of meta-llama by name."""

    def llama(version: str, size: str, renderers: tuple[str, ...] = _BASE) -> ModelAttributes:
        return ModelAttributes("meta-llama", version, size, renderers != _BASE, renderers)

    return {
        "Llama-3.1-8B-Instruct": llama("3.1", "8B", ("llama3",)),
        "Llama-3.3-70B-Instruct": llama("3.3", "70B", ("llama3",)),
        "Llama-3.2-1B": llama("3.2", "1B"),
        "Llama-3.2-3B": llama("3.2", "3B"),
        "Llama-3.1-8B": llama("3.1", "8B"),
        "Llama-3.1-70B": llama("3.1", "70B"),
    }


def get_qwen_info() -> dict[str, ModelAttributes]:
    """The models of Qwen by name."""

    def qwen(version: str, size: str, renderers: tuple[str, ...], is_vl: bool = False) -> ModelAttributes:
        return ModelAttributes("Qwen", version, size, renderers != _BASE, renderers, is_vl)

    instruct, vl_instruct = ("qwen3_instruct",), ("qwen3_vl_instruct",)
    return {
        "Qwen3-8B": qwen("3", "8B", _QWEN3),
        "Qwen3-32B": qwen("3", "32B", _QWEN3),
        "Qwen3-30B-A3B": qwen("3", "30B-A3B", _QWEN3),
        "Qwen3-8B-Base": qwen("3", "8B", _BASE),
        "Qwen3-30B-A3B-Base": qwen("3", "30B-A3B", _BASE),
        "Qwen3.5-9B-Base": qwen("3.5", "9B", _BASE),
        "Qwen3.5-35B-A3B-Base": qwen("3.5", "35B-A3B", _BASE),
        "Qwen3-4B-Instruct-2507": qwen("3", "4B", instruct),
        "Qwen3-30B-A3B-Instruct-2507": qwen("3", "30B-A3B", instruct),
        "Qwen3-235B-A22B-Instruct-2507": qwen("3", "235B-A22B", instruct),
        "Qwen3-VL-30B-A3B-Instruct": qwen("3", "30B-A3B", vl_instruct, is_vl=True),
        "Qwen3-VL-235B-A22B-Instruct": qwen("3", "235B-A22B", vl_instruct, is_vl=True),
        "Qwen3.5-4B": qwen("3.5", "4B", _QWEN3_5, is_vl=True),
        "Qwen3.5-9B": qwen("3.5", "9B", _QWEN3_5, is_vl=True),
        "Qwen3.5-27B": qwen("3.5", "27B", _QWEN3_5, is_vl=True),
        "Qwen3.5-35B-A3B": qwen("3.5", "35B-A3B", _QWEN3_5, is_vl=True),
        "Qwen3.5-397B-A17B": qwen("3.5", "397B-A17B", _QWEN3_5, is_vl=True),
        "Qwen3.6-27B": qwen("3.6", "27B", _QWEN3_5, is_vl=True),
        "Qwen3.6-35B-A3B": qwen("3.6", "35B-A3B", _QWEN3_5, is_vl=True),
        "Qwen3.8-27B": qwen("3.8", "27B", _QWEN3_8, is_vl=True),
    }


def get_deepseek_info() -> dict[str, ModelAttributes]:
    """The models of deepseek-ai by name."""
    size = "671B-A37B"
    return {
        "DeepSeek-V3.1": ModelAttributes("deepseek-ai", "3.1", size, True, _DEEPSEEK),
        "DeepSeek-V3.1-Base": ModelAttributes("deepseek-ai", "3.1", size, False, _BASE),
    }


def get_gpt_oss_info() -> dict[str, ModelAttributes]:
    """The open models of openai by name."""
    return {
        "gpt-oss-20b": ModelAttributes("openai", "1", "21B-A3.6B", True, _GPT_OSS),
        "gpt-oss-120b": ModelAttributes("openai", "1", "117B-A5.1B", True, _GPT_OSS),
    }


def get_moonshot_info() -> dict[str, ModelAttributes]:
    """The models of moonshotai by name."""
    organization, size = "moonshotai", "1T-A32B"
    k25 = ("kimi_k25", "kimi_k25_disable_thinking")
    return {
        "Kimi-K2-Thinking": ModelAttributes(organization, "K2", size, True, ("kimi_k2",)),
        "Kimi-K2.5": ModelAttributes(organization, "K2.5", size, True, k25, is_vl=True),
        "Kimi-K2.6": ModelAttributes(organization, "K2.6", size, True, _KIMI_K26, is_vl=True),
    }


def get_nvidia_info() -> dict[str, ModelAttributes]:
    """The models of nvidia by name."""

    def nemotron(version: str, size: str, renderers: tuple[str, ...]) -> ModelAttributes:
        return ModelAttributes("nvidia", version, size, True, renderers)

    low = (*_NEMOTRON, "nemotron3_low_thinking")
    return {
        "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": nemotron("3", "30B-A3B", _NEMOTRON),
        "NVIDIA-Nemotron-3-Super-120B-A12B-BF16": nemotron("3", "120B-A12B", low),
        "NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": nemotron("3", "550B-A55B", _ULTRA),
        "NVIDIA-Nemotron-3.5-Lightning-30B-A3B-BF16": nemotron("3.5", "30B-A3B", _LIGHTNING),
    }


def _engine_info() -> dict[str, ModelAttributes]:
    return {"tiny-chat": ModelAttributes("tinker-engine", "1", "2M", True, ("chatml",))}


def _smollm_info() -> dict[str, ModelAttributes]:
    def smollm2(size: str, renderers: tuple[str, ...]) -> ModelAttributes:
        return ModelAttributes("HuggingFaceTB", "2", size, renderers != _BASE, renderers)

    sizes = ("135M", "360M", "1.7B")
    chat = {f"SmolLM2-{size}-Instruct": smollm2(size, ("smollm2", "chatml")) for size in sizes}
    return chat | {f"SmolLM2-{size}": smollm2(size, _BASE) for size in sizes}


_INKLING = "thinkingmachines/Inkling"

_TABLE: dict[str, Callable[[], dict[str, ModelAttributes]]] = {
    "meta-llama": get_llama_info,
    "Qwen": get_qwen_info,
    "deepseek-ai": get_deepseek_info,
    "openai": get_gpt_oss_info,
    "moonshotai": get_moonshot_info,
    "nvidia": get_nvidia_info,
    "tinker-engine": _engine_info,
    "HuggingFaceTB": _smollm_info,
}


def _in_table(name: str) -> ModelAttributes | None:
    if name.startswith(_INKLING):  # every size and version of it
        size = name.removeprefix(_INKLING).strip("-")
        return ModelAttributes("thinkingmachines", "", size, True, ("tml_v0",), is_vl=True, is_audio_in=True)
    organization, _, model = name.partition("/")
    return _TABLE.get(organization, dict)().get(model)


# --- a model that only its files know ---------------------------------------------------------------------

# The first entry whose marks are all in the chat template. Qwen's are looked for in Qwen's models alone: others have
# borrowed the marks with another format around them.
_QWEN_TEMPLATES: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("<function=", "reasoning_effort"), _QWEN3_8),
    (("<function=", "enable_thinking"), _QWEN3_5),
    (("<tool_response>", "<|vision_start|>", "<think>"), ("qwen3_vl",)),
    (("<tool_response>", "<|vision_start|>"), ("qwen3_vl_instruct",)),
    (("<tool_response>", "enable_thinking"), _QWEN3),
    (("<tool_response>", "<think>"), ("qwen3_instruct",)),
)
_TEMPLATES: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("<|start_header_id|>",), ("llama3",)),
    (("<｜User｜>",), _DEEPSEEK),
    (("<|start|>", "<|channel|>"), _GPT_OSS),
    (("<|im_middle|>", "preserve_thinking"), _KIMI_K26),
    (("<|im_middle|>",), ("kimi_k2",)),
    (("<|im_start|>", "truncate_history_thinking"), _NEMOTRON),
    (("<|im_start|>",), ("chatml",)),
)


def _from_files(name: str, folder: Path) -> ModelAttributes:
    template = read_chat_template(folder)
    config = read_config(folder)
    renderers = (
        _BASE if template is None else _renderers_of_template(template, config.get("model_type", "qwen"))
    )
    if renderers is None:
        raise UnknownModelError(
            f"no renderer is known for the chat template of {name}; name one yourself (renderer_name=...) or call "
            "model_info.register_model"
        )
    organization = "" if Path(name).expanduser().is_dir() else name.partition("/")[0]
    is_vl = "vision_config" in config
    return ModelAttributes(organization, "", "", template is not None, renderers, is_vl)


def _renderers_of_template(template: str, model_type: str) -> tuple[str, ...] | None:
    rules = (*_QWEN_TEMPLATES, *_TEMPLATES) if model_type.startswith("qwen") else _TEMPLATES
    for marks, renderers in rules:
        if all(mark in template for mark in marks):
            return renderers
    return None
