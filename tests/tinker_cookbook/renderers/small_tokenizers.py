"""Tokenizers that can be made anywhere: one token per byte, one for two newlines, and a model's control tokens.

Enough to tell whether a renderer puts the right tokens in the right places, and how text meets text.
"""

from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def small_tokenizer(
    controls: Sequence[str], *, bos: str | None = None, eos: str | None = None
) -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: i for i, text in enumerate([*alphabet, "ĊĊ"])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[("Ċ", "Ċ")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    # As in the models' own tokenizers, not all control tokens are "special".
    backend.add_tokens(
        [AddedToken(text, special=i % 2 == 0, normalized=False) for i, text in enumerate(controls)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=bos, eos_token=eos)


def byte_tokens(tokenizer: PreTrainedTokenizerFast, data: bytes) -> list[int]:
    """These bytes, be they text or not."""
    ids = tokenizer.convert_tokens_to_ids([_letter(byte) for byte in data])
    return [ids] if isinstance(ids, int) else ids


def _letter(byte: int) -> str:
    """What stands for a byte in a byte-level vocabulary: itself if it can be seen, else a letter beyond Latin-1."""
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    if byte in seen:
        return chr(byte)
    return chr(256 + [b for b in range(256) if b not in seen].index(byte))
