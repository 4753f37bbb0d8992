"""Where samples end: strings across tokens, inside tokens, and characters split over tokens."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from tests.tinker_engine.sampling.conftest import MakeSampler
from tests.tinker_engine.sampling.support import assert_same, decoder_of, make_request, sample_one
from tinker_engine.model.decoder import Decoder
from tinker_engine.model.load import expected_shapes
from tinker_engine.model.tokenizer import Tokenizer
from tinker_engine.sampling.stops import Stops, StopWatch, read_stops

VOCABULARY = 320  # more than the tokenizer has, as real models do
TEXTS = (b"a", b"bc", b" the", b"\xc3", b"\xa9", b"\xf0\x9f", b"\x99\x82", b"</", b"s>", b"")


def ends_at(stops: Stops, tokens: list[int]) -> int | None:
    watch = StopWatch(stops, TEXTS.__getitem__)
    return next((i for i, token in enumerate(tokens) if watch.ends_with(token)), None)


def texts(*stops: str) -> Stops:
    return read_stops(stops, eos=(0,), vocab_size=len(TEXTS))


@pytest.mark.parametrize(
    ("stops", "tokens", "end"),
    [
        (texts("a"), [1, 1, 0, 1], 2),
        (texts("ab"), [0, 0, 1, 1], 2),  # across two tokens
        (texts("abcabc"), [0, 1, 0, 1, 0], 3),  # across four
        (texts("b"), [0, 1], 1),  # at the beginning of a token
        (texts("h"), [0, 2, 0], 1),  # in its middle
        (texts("ca"), [0, 1, 9, 9, 0], 4),  # tokens without text in between
        (texts("é"), [3, 0, 3, 4, 0], 3),  # a character in two tokens
        (texts("🙂"), [5, 5, 6], 2),
        (texts("🙂a"), [5, 6, 1, 5, 6, 0], 5),
        (texts("</s>"), [7, 7, 8], 2),
        (texts("xyz", "bca", "c the"), [0, 1, 2, 0], 2),  # the first of several to be complete
        (texts("bca", "b"), [0, 1, 0], 1),  # a short one beside a long one
        (texts("aaab"), [0, 0, 0, 0, 1], 4),  # a match that begins inside a failed one
        (texts("zz"), [0, 1, 2, 7, 8], None),
        (Stops(frozenset({7})), [0, 7, 7], 1),
        (Stops(frozenset({7}), (b"bc",)), [0, 1, 7], 1),
        (Stops(frozenset({7}), (b"bc",)), [0, 7, 1], 1),
        (Stops(), [0, 1, 2], None),
    ],
)
def test_where_a_sample_ends(stops: Stops, tokens: list[int], end: int | None):
    assert ends_at(stops, tokens) == end


def test_a_watch_agrees_with_a_search_of_the_whole_text():
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, len(TEXTS), (400,), generator=generator).tolist()
    so_far = b"".join(TEXTS[token] for token in tokens)
    for start in range(100, 130):
        piece = so_far[start : start + 7]
        so_far_at = [b"".join(TEXTS[token] for token in tokens[: i + 1]) for i in range(len(tokens))]
        assert ends_at(Stops(texts=(piece,)), tokens) == next(
            i for i, text in enumerate(so_far_at) if piece in text
        )


def test_what_each_kind_of_stop_means():
    assert read_stops(None, (7, 8), 10) == Stops(frozenset({7, 8}))
    assert read_stops([], (7, 8), 10) == Stops()
    assert read_stops([3], (7, 8), 10) == Stops(frozenset({3}))
    assert read_stops("né", (7,), 10) == Stops(texts=(b"n\xc3\xa9",))
    assert read_stops(("a", "b"), (7,), 10) == Stops(texts=(b"a", b"b"))


# --- from request to result, with the byte-level tokenizer ------------------------------------------


@pytest.fixture(scope="module")
def wide_decoder() -> Decoder:
    """Random weights over a vocabulary that holds all of the tokenizer's."""
    spec = replace(decoder_of("llama").spec, vocab_size=VOCABULARY)
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: 0.15 * torch.randn(shape, generator=generator) for name, shape in expected_shapes(spec).items()
    }
    return Decoder(spec, weights)


def scripted_decoder(tokens: list[int]) -> Decoder:
    """A decoder whose layers add nothing and whose head names, for each token, the next one of a script."""
    assert len(set(tokens)) == len(tokens), "a token can have only one successor"
    spec = replace(
        decoder_of("llama").spec,
        vocab_size=VOCABULARY,
        hidden_size=VOCABULARY,
        num_layers=1,
        tied_embeddings=False,
    )
    weights = {name: torch.zeros(shape) for name, shape in expected_shapes(spec).items()}
    weights["model.embed_tokens.weight"] = torch.eye(VOCABULARY)
    weights["model.norm.weight"] = torch.ones(VOCABULARY)
    for token, following in pairwise(tokens):
        weights["lm_head.weight"][following, token] = 1.0
    return Decoder(spec, weights)


def text_of(tokenizer: Tokenizer, tokens: list[int]) -> bytes:
    return b"".join(map(tokenizer.token_bytes, tokens))


def test_a_piece_of_a_samples_own_text_ends_it_there(
    wide_decoder: Decoder, tokenizer: Tokenizer, make_sampler: MakeSampler
):
    prompt = tokenizer.encode("the cat sat")
    free = sample_one(make_sampler(wide_decoder), make_request(prompt, 60))
    pieces = 0
    for first in range(len(free.tokens) - 2):
        words = [tokenizer.token_bytes(token) for token in free.tokens[first : first + 3]]
        piece = words[0][-1:] + words[1] + words[2][:1]  # from inside one token to inside the next but one
        if not piece.isascii() or not all(words):
            continue
        pieces += 1
        length = next(n for n in range(61) if piece in text_of(tokenizer, free.tokens[:n]))
        for stop in (piece.decode(), [piece.decode()], ["nowhere in it", piece.decode()]):
            stopped = sample_one(make_sampler(wide_decoder), make_request(prompt, 60, stop=stop))
            assert stopped.stop_reason == "stop"
            assert_same(replace(stopped, stop_reason="length"), cut(free, length))
        if pieces == 3:
            return
    raise AssertionError("the sample has too little text; choose another seed")


def cut(sequence, length: int):
    return replace(sequence, tokens=sequence.tokens[:length], logprobs=sequence.logprobs[:length])


@pytest.mark.parametrize(
    ("text", "stop", "returned"),
    [
        ("xé🙂日!z", "é", "é"),
        ("xé🙂日!z", "🙂", "é🙂"),
        ("xé🙂日!z", "日!", "é🙂日!"),
        ("xé🙂日!z", ["z", "🙂日"], "é🙂日"),
        ("x the cat", "he", " the"),  # the token that completes it is returned whole
        ("x the cat", "e c", " the c"),
        ("x the cat", "<|im_end|>", " the cat"),
    ],
)
def test_scripted_text(text: str, stop, returned: str, tokenizer: Tokenizer, make_sampler: MakeSampler):
    script = tokenizer.encode(text)
    sampler = make_sampler(scripted_decoder(script))
    wanted = make_request(script[:1], len(script) - 1, temperature=0, stop=stop)
    sequence = sample_one(sampler, wanted)
    assert text_of(tokenizer, sequence.tokens).startswith(returned.encode())
    assert sequence.tokens == script[1 : len(sequence.tokens) + 1]
    found = any(item in text[1:] for item in ([stop] if isinstance(stop, str) else stop))
    assert sequence.stop_reason == ("stop" if found else "length")
    before = text_of(tokenizer, sequence.tokens[:-1])
    assert not any(item.encode() in before for item in ([stop] if isinstance(stop, str) else stop))


def test_the_text_of_a_special_token_is_a_stop_like_any_other(
    tokenizer: Tokenizer, make_sampler: MakeSampler
):
    script = tokenizer.encode("xy<|im_end|>z")
    sampler = make_sampler(scripted_decoder(script))
    for stop in ("<|im_end|>", "im_end", [script[2]]):
        sequence = sample_one(sampler, make_request(script[:1], 3, temperature=0, stop=stop))
        assert (sequence.tokens, sequence.stop_reason) == (script[1:3], "stop")


def test_ids_that_no_token_has_contribute_no_text(tokenizer: Tokenizer, make_sampler: MakeSampler):
    script = [*tokenizer.encode("ab"), VOCABULARY - 1, *tokenizer.encode("cd")]
    sampler = make_sampler(scripted_decoder(script))
    sequence = sample_one(sampler, make_request(script[:1], 4, temperature=0, stop="bc"))
    assert (sequence.tokens, sequence.stop_reason) == (script[1:4], "stop")


def test_a_stop_in_the_prompt_does_not_count(tokenizer: Tokenizer, make_sampler: MakeSampler):
    script = tokenizer.encode("abcd")
    sampler = make_sampler(scripted_decoder(script))
    prompt, rest = script[:2], script[2:]
    for stop in ("ab", "b", "bc"):
        sequence = sample_one(sampler, make_request(prompt, 2, temperature=0, stop=stop))
        assert (sequence.tokens, sequence.stop_reason) == (rest, "length")
