import json
import random
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, processors

from tinker_engine.errors import InputError, ModelError
from tinker_engine.model.tokenizer import Tokenizer, eos_token_ids


@pytest.fixture
def tokenizer(model_folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(model_folder)


def _random_texts(count: int) -> list[str]:
    generator = random.Random(0)
    ranges = [(0x00, 0x80), (0x80, 0x800), (0x3000, 0xD800), (0xE000, 0x10000), (0x1F300, 0x1FA00)]
    return [
        "".join(chr(generator.randrange(*generator.choice(ranges))) for _ in range(generator.randrange(40)))
        for _ in range(count)
    ]


def test_token_bytes_join_to_the_text(tokenizer):
    for text in [
        "",
        " the cat\n\n  sat",
        "naïve 🙂 日本 123",
        "<|im_start|>a<|im_end|>",
        *_random_texts(200),
    ]:
        ids = tokenizer.encode(text)
        assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
        assert tokenizer.decode(ids) == text


def test_special_tokens_are_recognised_and_none_are_added(tokenizer):
    assert tokenizer.encode("<|im_start|><|im_end|>") == [1, 2]
    assert tokenizer.encode("") == []
    assert tokenizer.token_bytes(2) == b"<|im_end|>"
    assert tokenizer.decode([1, 2]) == "<|im_start|><|im_end|>"


def test_the_beginning_of_a_text_is_marked_when_asked_for(byte_level):
    inner = tokenizers.Tokenizer.from_str(byte_level.to_str())
    inner.add_special_tokens(["<bos>"])
    bos = inner.token_to_id("<bos>")
    inner.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", bos)])
    tokenizer = Tokenizer(inner)
    plain = tokenizer.encode("some text")
    assert bos not in plain
    assert tokenizer.encode("some text", add_special_tokens=True) == [bos, *plain]


def test_a_character_may_be_split_over_tokens(tokenizer):
    pieces = [tokenizer.token_bytes(i) for i in tokenizer.encode("🙂")]
    assert len(pieces) > 1
    assert b"".join(pieces).decode() == "🙂"


def test_ids_beyond_the_vocabulary_have_no_bytes(tokenizer):
    assert tokenizer.token_bytes(tokenizer.vocab_size) == b""
    assert tokenizer.token_bytes(tokenizer.vocab_size - 1) != b""


def test_truncation_stored_in_the_file_is_not_applied(model_folder, byte_level):
    cut = tokenizers.Tokenizer.from_str(byte_level.to_str())
    cut.enable_truncation(max_length=2)
    cut.enable_padding(length=8)
    cut.save(str(model_folder / "tokenizer.json"))
    assert Tokenizer.from_folder(model_folder).encode("1 2 3") == byte_level.encode("1 2 3").ids


def test_sentencepiece_vocabulary():
    vocab = {
        "<s>": 0,
        "</s>": 1,
        "▁": 2,
        "a": 3,
        "▁a": 4,
        **{f"<0x{byte:02X}>": 5 + byte for byte in range(256)},
    }
    inner = tokenizers.Tokenizer(models.BPE(vocab, [("▁", "a")], byte_fallback=True))
    inner.normalizer = normalizers.Replace(" ", "▁")
    inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    inner.add_special_tokens(["<s>", "</s>"])
    tokenizer = Tokenizer(inner)
    assert tokenizer.token_bytes(4) == b" a"
    assert tokenizer.token_bytes(5 + 0xE9) == b"\xe9"
    assert tokenizer.token_bytes(1) == b"</s>"
    text = " a a é</s>"
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))) == text.encode()


def test_a_vocabulary_of_another_kind_is_refused():
    inner = tokenizers.Tokenizer(models.WordPiece({"a": 0}, unk_token="a"))
    inner.decoder = decoders.WordPiece()
    with pytest.raises(ModelError, match="WordPiece"):
        Tokenizer(inner).token_bytes(0)


def test_text_that_is_no_unicode_is_refused(tokenizer):
    with pytest.raises(InputError, match="Unicode"):
        tokenizer.encode("\ud800")


def test_missing_and_damaged_files_are_named(model_folder):
    path = model_folder / "tokenizer.json"
    path.write_text(path.read_text()[:1000])
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read"):
        Tokenizer.from_folder(model_folder)
    path.unlink()
    with pytest.raises(ModelError, match=r"tokenizer\.json is missing"):
        Tokenizer.from_folder(model_folder)


def _set(path: Path, **fields: object) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(content | fields))


def test_eos_is_the_union_of_all_places(model_folder):
    _set(model_folder / "generation_config.json", eos_token_id=[7, 8])
    _set(model_folder / "config.json", eos_token_id=8)
    _set(model_folder / "tokenizer_config.json", eos_token={"content": "<|endoftext|>"})
    assert eos_token_ids(model_folder) == (7, 8, 0)
    _set(model_folder / "tokenizer_config.json", eos_token="<|im_end|>")
    assert eos_token_ids(model_folder) == (7, 8, 2)


def test_a_folder_without_any_eos_is_refused(model_folder):
    _set(model_folder / "generation_config.json", eos_token_id=None)
    _set(model_folder / "config.json", eos_token_id=None)
    with pytest.raises(ModelError, match="put eos_token_id into"):
        eos_token_ids(model_folder)


def test_eos_of_the_wrong_kind_is_refused(model_folder):
    _set(model_folder / "generation_config.json", eos_token_id=["</s>"])
    with pytest.raises(ModelError, match="must be an integer"):
        eos_token_ids(model_folder)
