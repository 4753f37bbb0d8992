"""The byte-level tokenizer, and samplers with a cache of a known size."""

from collections.abc import Callable

import pytest
import tokenizers

from tests.tinker_engine.model.conftest import byte_level
from tests.tinker_engine.sampling.support import FAMILY, decoder_of
from tinker_engine.model.decoder import Decoder
from tinker_engine.model.tokenizer import Tokenizer
from tinker_engine.sampling.sampler import Sampler

__all__ = ["byte_level"]  # the fixture of the models' tests

MakeSampler = Callable[..., Sampler]


@pytest.fixture(scope="session")
def tokenizer(byte_level: tokenizers.Tokenizer) -> Tokenizer:
    return Tokenizer(byte_level)


@pytest.fixture(scope="session")
def make_sampler(tokenizer: Tokenizer) -> MakeSampler:
    def make(
        decoder: Decoder | str = FAMILY,
        *,
        eos: tuple[int, ...] = (2,),
        cache_tokens: int = 16_384,
        most_rows: int = 64,
        prefill_tokens: int = 512,
    ) -> Sampler:
        decoder = decoder_of(decoder) if isinstance(decoder, str) else decoder
        return Sampler(
            decoder,
            tokenizer,
            eos,
            cache_tokens=cache_tokens,
            most_rows=most_rows,
            prefill_tokens=prefill_tokens,
        )

    return make
