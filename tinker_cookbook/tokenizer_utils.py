"""Tokenizers by model name, and text that stays text.

A name is looked for in this order: registered by the user, on this machine (the engine's models, then a folder of
that path), the hub. Under `tinker_cookbook.service.connect()` the hub is the engine, which serves the files of its
models and passes the rest on.
"""

import functools
import logging
import os
import re
from collections.abc import Callable
from typing import Any, TypeAlias

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.local_models import find_folder, without_variant

__all__ = [
    "PlainTextEncoder",
    "Tokenizer",
    "get_registered_tokenizer_names",
    "get_tokenizer",
    "is_tokenizer_registered",
    "register_tokenizer",
    "trust_remote_code",
    "unregister_tokenizer",
]

logger = logging.getLogger(__name__)

Tokenizer: TypeAlias = Any
"""A `transformers` tokenizer, or anything registered that behaves like one. Not named: importing it takes seconds."""

_UNGATED_LLAMA3 = "thinkingmachineslabinc/meta-llama-3-instruct-tokenizer"

_registered: dict[str, Callable[[], Tokenizer]] = {}


def register_tokenizer(name: str, factory: Callable[[], Tokenizer]) -> None:
    """From now on `get_tokenizer(name)` is what `factory()` returns, made anew each time."""
    _registered[name] = factory


def unregister_tokenizer(name: str) -> bool:
    """Whether there was one."""
    return _registered.pop(name, None) is not None


def is_tokenizer_registered(name: str) -> bool:
    """Whether a tokenizer of that name was registered."""
    return name in _registered


def get_registered_tokenizer_names() -> list[str]:
    """The names that were registered, in that order."""
    return list(_registered)


def get_tokenizer(model_name: str) -> Tokenizer:
    """The model's own tokenizer. Those that were loaded from files are kept, and must not be changed by the caller.

    The tokenizers of Llama 3 are gated on the hub. Who may not have them is given an ungated copy of that of
    Llama 3 Instruct, with a warning.
    """
    if factory := _registered.get(model_name):
        return factory()
    name = without_variant(model_name)
    if factory := _registered.get(name):
        return factory()
    return _load(name, trust_remote_code())


def trust_remote_code() -> bool:
    """Whether the user lets code that comes with a model run: never unless HF_TRUST_REMOTE_CODE says so."""
    return os.environ.get("HF_TRUST_REMOTE_CODE", "").lower() in ("1", "true", "yes")


@functools.cache
def _load(name: str, trust: bool) -> Tokenizer:
    folder = find_folder(name)
    try:
        tokenizer = _from_pretrained(name if folder is None else str(folder), trust)
    except (OSError, ValueError) as error:
        if folder is not None or not (name.startswith("meta-llama/Llama-3") and _is_gated(error)):
            raise ConfigurationError(_cannot_load(name, error, local=folder is not None)) from error
        logger.warning("%s is gated and you have no access; using the tokenizer %s", name, _UNGATED_LLAMA3)
        tokenizer = get_tokenizer(_UNGATED_LLAMA3)
    else:
        tokenizer.name_or_path = name  # not the folder: another machine may keep it elsewhere
    return tokenizer


def _from_pretrained(name_or_folder: str, trust: bool) -> Tokenizer:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(name_or_folder, trust_remote_code=trust)


def _is_gated(error: BaseException | None) -> bool:
    from huggingface_hub.errors import GatedRepoError

    while error is not None:
        if isinstance(error, GatedRepoError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _cannot_load(name: str, error: Exception, local: bool) -> str:
    if "trust_remote_code" in str(error):
        return f"the tokenizer of {name} is code of its own; to let it run, set HF_TRUST_REMOTE_CODE=1"
    if local:
        return f"the tokenizer of {name} cannot be read: {error}"
    return (
        f"there is no tokenizer for {name} on this machine and it could not be fetched. Do one of these: name a folder "
        f"that holds its files; type: tinker-engine pull {name}; point HF_ENDPOINT at a server that has it; or call "
        f"tokenizer_utils.register_tokenizer. The hub said: {error}"
    )


# --- text that stays text ---------------------------------------------------------------------------------

_KEPT_TEXTS, _KEPT_CHARACTERS = 2048, 2000


class PlainTextEncoder:
    """Encodes what people wrote, so that "<|im_end|>" or "<think>" in it is those characters and no control token.

    `encode(..., split_special_tokens=True)` of `transformers` is not enough. It lets every added token through that is
    not marked special, such as Qwen's `<tool_call>` and DeepSeek's `<｜User｜>`, and it works by a switch on the shared
    tokenizer, which another thread may turn meanwhile.

    Short texts are kept: roles, headers, and prompts that all members of a group begin with come again and again.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._kept: dict[str, tuple[int, ...]] = {}
        self._added: dict[str, int] = getattr(tokenizer, "get_added_vocab", dict)()
        self._added_ids = frozenset(self._added.values())

    def __call__(self, text: str) -> list[int]:
        if (kept := self._kept.get(text)) is not None:
            return list(kept)
        tokens = self._as_text(text)
        if len(text) <= _KEPT_CHARACTERS:
            if len(self._kept) >= _KEPT_TEXTS:
                self._kept.clear()
            self._kept[text] = tuple(tokens)
        return tokens

    def _as_text(self, text: str) -> list[int]:
        tokens = self._encode(text)
        if self._added_ids.isdisjoint(tokens):
            return tokens
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is not None:
            return _encode_without_added_tokens(backend, text)
        return [token for piece in self._cuts.split(text) for token in self._encode(piece)]

    @functools.cached_property
    def _cuts(self) -> re.Pattern[str]:
        """Matches, with no width, after the first character of every added token."""
        long = [token for token in self._added if len(token) > 1]
        places = [f"(?<={re.escape(token[0])})(?={re.escape(token[1:])})" for token in long]
        return re.compile("|".join(places))

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))


def _encode_without_added_tokens(backend: Any, text: str) -> list[int]:
    """The stages of a `tokenizers.Tokenizer` that come after it has looked for added tokens."""
    if backend.normalizer is not None:
        text = backend.normalizer.normalize_str(text)
    words = [text]
    if backend.pre_tokenizer is not None:
        words = [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
    return [token.id for word in words for token in backend.model.tokenize(word)]
