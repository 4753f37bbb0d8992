"""Text to token ids and back, and the exact bytes each token stands for."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from tinker_engine.errors import InputError, ModelError


class Tokenizer:
    """A `tokenizer.json`, with nothing added to or taken from the text."""

    def __init__(self, inner: tokenizers.Tokenizer):
        self._inner = inner
        # Files saved after a training run often carry its maximum length: text would be cut silently.
        inner.no_truncation()
        inner.no_padding()

    @classmethod
    def from_folder(cls, folder: Path) -> "Tokenizer":
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ModelError(
                f"{path} is missing: a model folder needs its tokenizer.json; copy it there from the "
                "place the model came from"
            )
        try:
            inner = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
        except Exception as error:  # the package raises bare Exception for whatever is wrong in the file
            raise ModelError(f"{path} cannot be read as a tokenizer: {error}") from error
        return cls(inner)

    @cached_property
    def vocab_size(self) -> int:
        """One more than the highest id; a model's embedding may have more rows than this."""
        return max(self._inner.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """The text of a special token becomes that token. None is added unless asked for: then those with which
        the tokenizer begins a text, which chat templates write themselves."""
        try:
            return self._inner.encode(text, add_special_tokens=add_special_tokens).ids
        except TypeError as error:  # how the package reports half of a surrogate pair
            raise InputError("text", "is not valid Unicode: it cannot be written as UTF-8") from error

    def decode(self, ids: Sequence[int]) -> str:
        """Special tokens stay in the text; bytes that are no UTF-8 become U+FFFD."""
        return self._inner.decode(list(ids), skip_special_tokens=False)

    def token_id(self, token: str) -> int | None:
        return self._inner.token_to_id(token)

    def token_bytes(self, token_id: int) -> bytes:
        """What this token contributes to the text; nothing for an id that no token has.

        Joined over `encode(text)` these are the bytes of the text, except where the tokenizer
        itself changes it first (Unicode normalisation in Qwen, a leading space in SentencePiece).
        """
        return self._bytes_by_id.get(token_id, b"")

    @cached_property
    def _bytes_by_id(self) -> dict[int, bytes]:
        added = {i: token.content.encode() for i, token in self._inner.get_added_tokens_decoder().items()}
        to_bytes = _token_codec(json.loads(self._inner.to_str()))
        vocab = self._inner.get_vocab(with_added_tokens=False)
        return {i: to_bytes(token) for token, i in vocab.items()} | added


def eos_token_ids(folder: Path, tokenizer: Tokenizer | None = None) -> tuple[int, ...]:
    """Every id that ends a text, of all the places where a model folder may say so.

    They disagree in practice: an instruct model's generation_config.json names the end of a turn
    while its config.json still names the base model's end of text. A sampler must stop at either.
    """
    tokenizer = tokenizer or Tokenizer.from_folder(folder)
    found: list[Any] = []
    for name in ("generation_config.json", "config.json"):
        value = read_json(folder / name).get("eos_token_id")
        found += value if isinstance(value, list) else [value] if value is not None else []
    token = read_json(folder / "tokenizer_config.json").get("eos_token")
    content = token.get("content") if isinstance(token, dict) else token
    if isinstance(content, str) and (token_id := tokenizer.token_id(content)) is not None:
        found.append(token_id)
    if not found:
        raise ModelError(
            f"{folder} does not say which token ends a text: put eos_token_id into its generation_config.json"
        )
    if not all(isinstance(i, int) for i in found):
        raise ModelError(f"{folder}: eos_token_id must be an integer or a list of them, got {found}")
    return tuple(dict.fromkeys(found))


def read_json(path: Path) -> dict[str, Any]:
    """The object in one of a model folder's files; an absent file says nothing."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} must hold a JSON object")
    return content


def _token_codec(definition: Mapping[str, Any]) -> Callable[[str], bytes]:
    """How this vocabulary spells bytes, told by the decoder that turns its tokens into text."""
    decoder = _component_types(definition.get("decoder"))
    if "ByteLevel" in decoder:
        return _byte_level
    if decoder & {"ByteFallback", "Metaspace", "Replace"}:
        return _sentencepiece
    raise ModelError(
        f"tokenizer.json has the decoder {sorted(decoder) or 'none'}; supported are byte-level BPE and "
        "SentencePiece vocabularies"
    )


def _component_types(component: Mapping[str, Any] | None) -> set[str]:
    if component is None:
        return set()
    parts = component.get("decoders") or []
    return {component["type"]}.union(*(_component_types(part) for part in parts))


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable Latin-1 stands for itself, the rest for U+0100 onwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(b): b for b in printable} | {chr(0x100 + n): b for n, b in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def _byte_level(token: str) -> bytes:
    try:
        return bytes(_BYTE_OF[char] for char in token)
    except KeyError:  # a token outside the alphabet is spelled out, e.g. a reserved name in the vocabulary
        return token.encode()


def _sentencepiece(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.replace("▁", " ").encode()
