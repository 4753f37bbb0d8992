"""The tiny model's byte-level BPE, learned from its own training text."""

from collections.abc import Iterable

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from scripts.tiny_chat.chatml import SPECIAL_TOKENS

VOCABULARY = 1024


def train_tokenizer(texts: Iterable[str], vocabulary: int = VOCABULARY) -> tokenizers.Tokenizer:
    """Digits stay single, so that numbers have columns; every byte has a token, so that any text encodes."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
