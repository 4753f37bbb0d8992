import json
import logging
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinker_cookbook import tokenizer_utils
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.tokenizer_utils import PlainTextEncoder, get_tokenizer

TINY = "tinker-engine/tiny-chat"
MARKS = ("<|im_end|>", "<think>", "<｜User｜>", "<tool_call>")  # the first is special, the others only added


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tokenizer like Qwen's and DeepSeek's: byte-level, with turn marks that are not marked special."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

    path = tmp_path_factory.mktemp("tokenizer")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(MARKS[0], special=True)])
    backend.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS[1:]])
    backend.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return path


@pytest.fixture
def offline(monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))


# --- by name ----------------------------------------------------------------------------------------------


def test_the_model_that_comes_with_the_engine_needs_no_network(offline):
    tokenizer = get_tokenizer(TINY)
    assert tokenizer.decode(tokenizer.encode("a red lamp", add_special_tokens=False)) == "a red lamp"
    assert get_tokenizer(f"{TINY}:peft:512") is tokenizer
    assert tokenizer.name_or_path == TINY, "another machine has it in another folder"


def test_a_folder_is_a_name(folder):
    assert get_tokenizer(str(folder)).encode("<think>") == [257]
    assert get_tokenizer(str(folder)) is get_tokenizer(str(folder))


def test_what_is_registered_comes_first():
    ours = object()
    tokenizer_utils.register_tokenizer(TINY, lambda: ours)
    try:
        assert get_tokenizer(TINY) is ours
        assert get_tokenizer(f"{TINY}:peft:512") is ours
        assert tokenizer_utils.is_tokenizer_registered(TINY)
        assert tokenizer_utils.get_registered_tokenizer_names() == [TINY]
    finally:
        assert tokenizer_utils.unregister_tokenizer(TINY)
    assert not tokenizer_utils.unregister_tokenizer(TINY)
    assert get_tokenizer(TINY) is not ours


def test_a_name_that_cannot_be_had_says_what_to_do(offline):
    with pytest.raises(ConfigurationError) as caught:
        get_tokenizer("nobody/nothing")
    for words in ("nobody/nothing", "folder", "tinker-engine pull", "HF_ENDPOINT", "register_tokenizer"):
        assert words in str(caught.value)


def test_a_folder_without_a_tokenizer_is_not_looked_for_on_the_hub(tmp_path):
    with pytest.raises(ConfigurationError, match="cannot be read"):
        get_tokenizer(str(tmp_path))


def test_code_in_a_folder_does_not_run_unless_the_user_says_so(tmp_path, monkeypatch):
    monkeypatch.delenv("HF_TRUST_REMOTE_CODE", raising=False)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "unheard-of"}))
    settings = {"tokenizer_class": "Theirs", "auto_map": {"AutoTokenizer": ["code.Theirs", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(ConfigurationError, match="HF_TRUST_REMOTE_CODE=1"):
        get_tokenizer(str(tmp_path))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("value", "trusts"),
    [("1", True), ("TRUE", True), ("yes", True), ("0", False), ("no", False), ("", False)],
)
def test_remote_code_is_trusted_by_an_environment_variable_alone(value, trusts, monkeypatch):
    monkeypatch.setenv("HF_TRUST_REMOTE_CODE", value)
    assert tokenizer_utils.trust_remote_code() is trusts


def test_llama_3_is_its_own_tokenizer_and_an_ungated_copy_only_for_want_of_access(monkeypatch, caplog):
    from huggingface_hub.errors import GatedRepoError
    from huggingface_hub.utils import httpx

    asked = []

    def load(name, trust):
        asked.append(name)
        if name == "meta-llama/Llama-3.2-gated":
            refused = httpx.Response(403, request=httpx.Request("GET", "http://hub"))
            raise OSError("gated") from GatedRepoError("no", response=refused)
        return type("Loaded", (), {})()

    monkeypatch.setattr(tokenizer_utils, "_from_pretrained", load)
    with caplog.at_level(logging.WARNING):
        assert get_tokenizer("meta-llama/Llama-3.2-open").name_or_path == "meta-llama/Llama-3.2-open"
        assert not caplog.records
        copy = get_tokenizer("meta-llama/Llama-3.2-gated")
    assert asked[0] == "meta-llama/Llama-3.2-open"
    assert copy.name_or_path == asked[-1] == "thinkingmachineslabinc/meta-llama-3-instruct-tokenizer"
    assert "meta-llama/Llama-3.2-gated is gated" in caplog.text


def test_importing_brings_nothing_heavy():
    code = """
import sys
from tinker_cookbook import cli_utils, hyperparam_utils, image_processing_utils, model_info, tokenizer_utils
print({"torch", "transformers", "huggingface_hub", "tokenizers", "tinker", "PIL"} & sys.modules.keys())
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.strip() == "set()"


# --- text that stays text ---------------------------------------------------------------------------------


class Slow:
    """A tokenizer with no `tokenizers` behind it that can be seen."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer

    def encode(self, text, add_special_tokens=True):
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def get_added_vocab(self):
        return self._tokenizer.get_added_vocab()


@pytest.mark.parametrize("kind", [lambda tokenizer: tokenizer, Slow])
@given(pieces=st.lists(st.sampled_from([*MARKS, "a", " ", "<", "é", "\n", "日"])))
def test_marks_in_text_are_no_tokens(folder, kind, pieces):
    tokenizer = get_tokenizer(str(folder))
    text = "".join(pieces)
    tokens = PlainTextEncoder(kind(tokenizer))(text)
    assert not set(tokens) & set(tokenizer.get_added_vocab().values())
    assert tokenizer.decode(tokens) == text


@settings(max_examples=50)
@given(text=st.text())
def test_other_text_is_encoded_as_always(text):
    tokenizer = get_tokenizer(TINY)
    assert PlainTextEncoder(tokenizer)(text) == tokenizer.encode(text, add_special_tokens=False)


def test_the_tiny_model_can_be_shown_its_own_marks():
    tokenizer = get_tokenizer(TINY)
    for mark, token in tokenizer.get_added_vocab().items():
        tokens = PlainTextEncoder(tokenizer)(f"say {mark} now")
        assert token not in tokens
        assert tokenizer.decode(tokens) == f"say {mark} now"


def test_nothing_is_added_at_the_beginning(folder):
    assert PlainTextEncoder(get_tokenizer(str(folder)))("") == []


def test_what_is_kept_of_a_text_belongs_to_nobody():
    encode = PlainTextEncoder(get_tokenizer("tinker-engine/tiny-chat"))
    first = encode("say it again")
    expected = list(first)
    first.clear()
    assert encode("say it again") == expected
    for number in range(3000):  # more texts than are kept
        encode(str(number))
    assert encode("say it again") == expected
