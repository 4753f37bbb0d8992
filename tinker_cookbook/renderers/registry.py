"""Renderers by name: the families we know, and those a user registers."""

from collections.abc import Callable
from functools import partial
from typing import Any

from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.renderers.chatml import ChatMLRenderer, SmolLM2Renderer
from tinker_cookbook.renderers.deepseek_v3 import (
    DeepSeekV3DisableThinkingRenderer,
    DeepSeekV3ThinkingRenderer,
)
from tinker_cookbook.renderers.gpt_oss import GptOssRenderer
from tinker_cookbook.renderers.llama3 import Llama3Renderer
from tinker_cookbook.renderers.qwen3 import Qwen3DisableThinkingRenderer, Qwen3InstructRenderer, Qwen3Renderer
from tinker_cookbook.renderers.qwen3_5 import Qwen3_5DisableThinkingRenderer, Qwen3_5Renderer
from tinker_cookbook.renderers.renderer import Renderer
from tinker_cookbook.renderers.role_colon import RoleColonRenderer
from tinker_cookbook.tokenizer_utils import Tokenizer, get_tokenizer

RendererFactory = Callable[[Tokenizer, Any], Renderer]
"""(tokenizer, image processor or None) → renderer"""

BUILT_IN: dict[str, Callable[[Tokenizer], Renderer]] = {
    "role_colon": RoleColonRenderer,
    "chatml": ChatMLRenderer,
    "smollm2": SmolLM2Renderer,
    "llama3": Llama3Renderer,
    "qwen3": Qwen3Renderer,
    "qwen3_disable_thinking": Qwen3DisableThinkingRenderer,
    "qwen3_instruct": Qwen3InstructRenderer,
    "qwen3_5": Qwen3_5Renderer,
    "qwen3_5_disable_thinking": Qwen3_5DisableThinkingRenderer,
    "deepseekv3": DeepSeekV3DisableThinkingRenderer,
    "deepseekv3_disable_thinking": DeepSeekV3DisableThinkingRenderer,
    "deepseekv3_thinking": DeepSeekV3ThinkingRenderer,
    "gpt_oss_no_sysprompt": GptOssRenderer,
    **{
        f"gpt_oss_{effort}_reasoning": partial(
            GptOssRenderer, use_system_prompt=True, reasoning_effort=effort
        )
        for effort in ("low", "medium", "high")
    },
}

_registered: dict[str, RendererFactory] = {}


def get_renderer(
    name: str, tokenizer: Tokenizer, image_processor: Any = None, model_name: str | None = None
) -> Renderer:
    """The renderer of that name; one that was registered comes before ours.

    Ours: role_colon, chatml, smollm2, llama3, qwen3, qwen3_disable_thinking, qwen3_instruct, qwen3_5,
    qwen3_5_disable_thinking, deepseekv3, deepseekv3_disable_thinking, deepseekv3_thinking, gpt_oss_no_sysprompt,
    gpt_oss_low_reasoning, gpt_oss_medium_reasoning, gpt_oss_high_reasoning.
    `model_name` is by what the tokenizer is found again in another process; the tokenizer's own name by default.
    """
    if name in _registered:
        renderer = _registered[name](tokenizer, image_processor)
    elif name in BUILT_IN:
        renderer = BUILT_IN[name](tokenizer)
    else:
        known = ", ".join(sorted({*BUILT_IN, *_registered}))
        raise RendererError(f"no renderer is named {name!r}; there are: {known}")
    renderer._renderer_name = name
    renderer._model_name = model_name or getattr(tokenizer, "name_or_path", None) or None
    renderer._has_image_processor = image_processor is not None
    return renderer


def register_renderer(name: str, factory: RendererFactory) -> None:
    """Make a renderer of one's own known by name, also in processes that register it when they start."""
    _registered[name] = factory


def unregister_renderer(name: str) -> bool:
    """Forgets a renderer that was registered; whether there was one."""
    return _registered.pop(name, None) is not None


def is_renderer_registered(name: str) -> bool:
    """Whether a renderer of that name was registered; those that come with the cookbook do not count."""
    return name in _registered


def get_registered_renderer_names() -> list[str]:
    """Those of the user, not ours."""
    return sorted(_registered)


def rebuild(name: str, model_name: str, has_image_processor: bool) -> Renderer:
    """For unpickling."""
    image_processor = None
    if has_image_processor:
        from tinker_cookbook.image_processing_utils import get_image_processor  # brings Pillow along

        image_processor = get_image_processor(model_name)
    return get_renderer(name, get_tokenizer(model_name), image_processor, model_name)
