"""The tiny model's own tokenizer and renderer."""

import functools

from tinker_cookbook.renderers import Renderer, get_renderer
from tinker_cookbook.tokenizer_utils import get_tokenizer

MODEL = "tinker-engine/tiny-chat"
END = "<|im_end|>"


@functools.cache
def chatml() -> Renderer:
    return get_renderer("chatml", get_tokenizer(MODEL), model_name=MODEL)


def tokens_of(text: str) -> list[int]:
    """Control tokens are meant."""
    return get_tokenizer(MODEL).encode(text, add_special_tokens=False)


def text_of(tokens: list[int]) -> str:
    return get_tokenizer(MODEL).decode(tokens)
