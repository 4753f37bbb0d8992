"""Rebuild a Hugging Face tokenizer from the metadata of a GGUF file.

A GGUF file holds the tokens and merges of a byte-level BPE but only the name of the rule that
cuts text into words before merging. A wrong rule still round-trips every text, yet yields tokens
the model never saw in training; so each rule here is the one of the family that the name stands
for, and unknown names are refused.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers
from gguf import TokenType

from tinker_engine.errors import ModelError

_KEY = "tokenizer.ggml."


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _split_words(digits: str) -> dict[str, Any]:
    """The split that GPT-4 made common; families differ in how many digits make a word."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, _byte_level(use_regex=False)]}


@dataclass(frozen=True)
class _Family:
    """What the name in tokenizer.ggml.pre stands for."""

    pre_tokenizer: Mapping[str, Any]
    normalizer: Mapping[str, Any] | None = None
    ignore_merges: bool = False  # a word that is a token as a whole is taken as that
    adds_bos: bool = False  # where the file does not say


_GPT2 = _Family(_byte_level(use_regex=True))

_FAMILIES = {
    "smollm": _Family(
        {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, _byte_level(use_regex=True)],
        }
    ),
    "gpt-2": _GPT2,
    "default": _GPT2,  # written where no rule was named: the split byte-level BPE started with
    "qwen2": _Family(_split_words(r"\p{N}"), normalizer={"type": "NFC"}),
    "llama-bpe": _Family(_split_words(r"\p{N}{1,3}"), ignore_merges=True, adds_bos=True),
}


@dataclass(frozen=True)
class RebuiltTokenizer:
    """The contents of the tokenizer files, and what the other files need to know of it."""

    definition: Mapping[str, Any]  # tokenizer.json
    config: Mapping[str, Any]  # tokenizer_config.json
    special_ids: Mapping[str, int]  # bos_token_id and so on
    generation_config: Mapping[str, Any]
    size: int


def rebuild(metadata: Mapping[str, Any], *, where: str) -> RebuiltTokenizer:
    """`where` names the file in errors."""
    if (model := metadata.get(_KEY + "model")) != "gpt2":
        raise ModelError(
            f"{where}: tokenizer model {model!r} is not supported; supported is: gpt2 (byte-level BPE). "
            "Use the model's safetensors folder, which has its own tokenizer.json"
        )
    pre = metadata.get(_KEY + "pre", "default")
    if pre not in _FAMILIES:
        raise ModelError(
            f"{where}: tokenizer split {pre!r} is not supported; supported are: {', '.join(_FAMILIES)}. "
            "Use the model's safetensors folder, which has its own tokenizer.json"
        )
    try:
        tokens, types, merges = (metadata[_KEY + key] for key in ("tokens", "token_type", "merges"))
    except KeyError as error:
        raise ModelError(f"{where}: the field {error.args[0]!r} is missing") from error
    if len(tokens) != len(types):
        raise ModelError(f"{where}: {len(tokens)} tokens, but types for {len(types)} of them")
    special = {role: _token(metadata, role, tokens, where) for role in ("bos", "eos", "padding", "unknown")}
    adds_bos = metadata.get(_KEY + "add_bos_token", _FAMILIES[pre].adds_bos) and special["bos"] is not None
    definition = _definition(_FAMILIES[pre], tokens, types, merges, bos=special["bos"] if adds_bos else None)
    _check(definition, tokens, types, where)
    return RebuiltTokenizer(
        definition=definition,
        config=_config(metadata, special, bool(adds_bos)),
        special_ids=_special_ids(metadata),
        generation_config=_generation_config(metadata),
        size=len(tokens),
    )


def _definition(
    family: _Family, tokens: list[str], types: list[int], merges: list[str], bos: str | None
) -> dict[str, Any]:
    kinds = [(i, token, kind) for i, (token, kind) in enumerate(zip(tokens, types, strict=True))]
    added = [
        {
            "id": i,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == TokenType.CONTROL,
        }
        for i, token, kind in kinds
        if kind in (TokenType.CONTROL, TokenType.USER_DEFINED)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": family.normalizer,
        "pre_tokenizer": family.pre_tokenizer,
        "post_processor": _prepend(bos, tokens) if bos is not None else None,
        "decoder": _byte_level(use_regex=True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": family.ignore_merges,
            # Unused entries only pad the embedding; added tokens are here too, as that fixes their ids.
            "vocab": {token: i for i, token, kind in kinds if kind != TokenType.UNUSED},
            "merges": [merge.split(" ") for merge in merges],
        },
    }


def _prepend(bos: str, tokens: list[str]) -> dict[str, Any]:
    def piece(kind: str, name: str, sequence: int) -> dict[str, Any]:
        return {kind: {"id": name, "type_id": sequence}}

    first = [piece("SpecialToken", bos, 0), piece("Sequence", "A", 0)]
    second = [piece("SpecialToken", bos, 1), piece("Sequence", "B", 1)]
    return {
        "type": "TemplateProcessing",
        "single": first,
        "pair": first + second,
        "special_tokens": {bos: {"id": bos, "ids": [tokens.index(bos)], "tokens": [bos]}},
    }


def _config(metadata: Mapping[str, Any], special: Mapping[str, str | None], adds_bos: bool) -> dict[str, Any]:
    return {
        # The plain class takes tokenizer.json as it is; a family's own class would replace the split.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": adds_bos,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "bos_token": special["bos"],
        "eos_token": special["eos"],
        "pad_token": special["padding"],
        "unk_token": special["unknown"],
        "chat_template": metadata.get("tokenizer.chat_template"),
    }


def _special_ids(metadata: Mapping[str, Any]) -> dict[str, int]:
    roles = {"bos": "bos_token_id", "eos": "eos_token_id", "padding": "pad_token_id"}
    ids = {name: metadata.get(f"{_KEY}{role}_token_id") for role, name in roles.items()}
    return {name: value for name, value in ids.items() if value is not None}


def _generation_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    ids = _special_ids(metadata)
    turn_end = metadata.get(_KEY + "eot_token_id")
    if "eos_token_id" in ids and turn_end not in (None, ids["eos_token_id"]):
        return ids | {"eos_token_id": [ids["eos_token_id"], turn_end]}
    return ids


def _token(metadata: Mapping[str, Any], role: str, tokens: list[str], where: str) -> str | None:
    if (token_id := metadata.get(f"{_KEY}{role}_token_id")) is None:
        return None
    if not 0 <= token_id < len(tokens):
        raise ModelError(f"{where}: {role}_token_id {token_id} is beyond the {len(tokens)} tokens")
    return tokens[token_id]


def _check(definition: Mapping[str, Any], tokens: list[str], types: list[int], where: str) -> None:
    """The tokenizers package must accept the result and give every token the id it has in the file."""
    try:
        built = tokenizers.Tokenizer.from_str(json.dumps(definition))
    except Exception as error:  # the package raises bare Exception
        raise ModelError(f"{where}: its tokens and merges make no tokenizer: {error}") from error
    vocab = built.get_vocab(with_added_tokens=True)
    wrong = [
        token
        for i, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind != TokenType.UNUSED and vocab.get(token) != i
    ]
    if wrong:
        raise ModelError(f"{where}: tokens listed more than once: {wrong[:5]}")
