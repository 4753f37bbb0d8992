import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import tokenizers
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tinker_engine.errors import InputError, ModelError
from tinker_engine.model import gguf as our_gguf
from tinker_engine.model.folders import resolve
from tinker_engine.model.gguf import convert
from tinker_engine.model.load import load_model
from tinker_engine.model.spec import ModelSpec
from tinker_engine.model.tokenizer import Tokenizer, eos_token_ids

LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "converted"


def _logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(3, 40)[None]).logits


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": False, "attention_bias": True}),
        ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}}),
        ("qwen2", {}),
        ("qwen3", {"head_dim": 32, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    ],
)
def test_the_converted_model_computes_the_same(tmp_path, out, make_model, make_gguf, family, changes):
    """An unpermuted q_proj, a lost bias or rope setting would all show in the logits."""
    model = make_model(family, **changes)
    file = make_gguf(model)
    if "linear" in str(changes):
        file.metadata |= {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    convert(file.write(tmp_path / "model.gguf"), out)
    converted = AutoModelForCausalLM.from_pretrained(out)
    assert type(converted) is type(model)
    assert all(torch.equal(a, b) for a, b in zip(converted.parameters(), model.parameters(), strict=True))
    assert torch.equal(_logits(converted), _logits(model))


@pytest.mark.parametrize("matrices", ["Q8_0", "Q4_1", "F16", "BF16"])
def test_values_are_exactly_the_dequantised_ones(tmp_path, out, make_model, make_gguf, matrices):
    model = make_model()
    convert(make_gguf(model).write(tmp_path / "model.gguf", matrices), out)
    stored = load_file(out / "model.safetensors")
    kind = gguf.GGMLQuantizationType[matrices]
    for name, parameter in model.named_parameters():
        values = parameter.detach().numpy()
        if values.ndim > 1:
            # Blocks lie within a row, so quantising before or after the rows are permuted is the same.
            values = gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)
        assert np.array_equal(stored[name].float().numpy(), values), name


@pytest.mark.parametrize(
    ("matrices", "dtype"),
    [("Q8_0", torch.float32), ("F16", torch.float16), ("BF16", torch.bfloat16), ("F32", torch.float32)],
)
def test_sixteen_bit_files_stay_sixteen_bit(tmp_path, out, make_gguf, matrices, dtype):
    convert(make_gguf().write(tmp_path / "model.gguf", matrices), out)
    stored = load_file(out / "model.safetensors")
    assert stored["model.layers.0.self_attn.q_proj.weight"].dtype == dtype
    assert stored["model.norm.weight"].dtype == torch.float32
    assert AutoModelForCausalLM.from_pretrained(out, dtype="auto").dtype == dtype


def test_config_numbers_are_the_plain_ones(tmp_path, out, make_gguf):
    convert(make_gguf().write(tmp_path / "model.gguf"), out)
    config = json.loads((out / "config.json").read_text())
    assert config["rms_norm_eps"] == 1e-6
    assert config["rope_theta"] == 10_000.0
    assert "rope_scaling" not in config
    assert ModelSpec.from_folder(out).vocab_size == 320
    assert eos_token_ids(out) == (2,)


def test_the_tokenizer_is_the_original(tmp_path, out, make_gguf, byte_level):
    convert(make_gguf().write(tmp_path / "model.gguf"), out)
    ours, theirs = Tokenizer.from_folder(out), AutoTokenizer.from_pretrained(out)
    for text in ("the cat sat at 123 o'clock", "  dog\n\n<|im_start|>é🙂<|im_end|>", "a<|endoftext|>b"):
        expected = byte_level.encode(text).ids
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False) == expected
    assert len(ours.encode("123")) == 3
    assert ours.vocab_size == byte_level.get_vocab_size()  # rows that only pad the embedding are no tokens
    assert (theirs.bos_token, theirs.eos_token, theirs.pad_token) == (
        "<|im_start|>",
        "<|im_end|>",
        "<|im_end|>",
    )
    chat = theirs.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert chat == "<|im_start|>hi<|im_end|>"


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("smollm", "it's 2024", ["it", "'s", " ", "2", "0", "2", "4"]),
        ("default", "it's 2024", ["it", "'s", " 2024"]),
        ("gpt-2", "it's 2024", ["it", "'s", " 2024"]),
        ("qwen2", "IT'S 2024\n\n", ["IT", "'S", " ", "2", "0", "2", "4", "\n\n"]),
        ("llama-bpe", "IT'S 2024\n\n", ["IT", "'S", " ", "202", "4", "\n\n"]),
    ],
)
def test_each_family_splits_words_its_own_way(tmp_path, out, make_gguf, pre, text, words):
    file = make_gguf()
    file.metadata["tokenizer.ggml.pre"] = pre
    convert(file.write(tmp_path / "model.gguf"), out)
    splitter = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json")).pre_tokenizer
    assert splitter is not None
    pieces = [piece.replace("Ġ", " ").replace("Ċ", "\n") for piece, _ in splitter.pre_tokenize_str(text)]
    assert pieces == words


def test_a_beginning_token_is_added_where_the_file_says_so(tmp_path, out, make_gguf):
    file = make_gguf()
    file.metadata["tokenizer.ggml.add_bos_token"] = True
    convert(file.write(tmp_path / "model.gguf"), out)
    assert AutoTokenizer.from_pretrained(out).encode("<|im_end|>") == [1, 2]
    assert Tokenizer.from_folder(out).encode("<|im_end|>") == [2]


def test_the_end_of_a_turn_also_ends_a_text(tmp_path, out, make_gguf):
    file = make_gguf()
    file.metadata["tokenizer.ggml.eot_token_id"] = 0
    convert(file.write(tmp_path / "model.gguf"), out)
    assert eos_token_ids(out) == (2, 0)


def test_llama3_rope_scaling_is_recognised_by_its_divisors(tmp_path, out, make_model, make_gguf):
    rope = LLAMA3_SCALING | {"rope_theta": 500_000.0}
    model = make_model(rope_parameters=rope, head_dim=64, max_position_embeddings=131072)
    file = make_gguf(model)
    plain = 1 / 500_000.0 ** (torch.arange(0, 64, 2) / 64)
    file.tensors["rope_freqs.weight"] = (plain / model.model.rotary_emb.inv_freq).numpy()
    convert(file.write(tmp_path / "model.gguf"), out)
    assert json.loads((out / "config.json").read_text())["rope_scaling"] == LLAMA3_SCALING
    assert torch.equal(_logits(AutoModelForCausalLM.from_pretrained(out)), _logits(model))


def _unknown_divisors(file):
    file.tensors["rope_freqs.weight"] = np.linspace(1, 7, 8, dtype=np.float32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: setattr(f, "architecture", "mamba"), "architecture 'mamba' is not supported"),
        (lambda f: f.metadata.update({"tokenizer.ggml.model": "llama"}), "tokenizer model 'llama'"),
        (lambda f: f.metadata.update({"tokenizer.ggml.pre": "tekken"}), "tokenizer split 'tekken'"),
        (lambda f: f.metadata.pop("tokenizer.ggml.merges"), "tokenizer.ggml.merges"),
        (lambda f: f.metadata["tokenizer.ggml.token_type"].pop(), "320 tokens, but types for 319"),
        (lambda f: f.metadata.update({"tokenizer.ggml.eos_token_id": 999}), "eos_token_id 999 is beyond"),
        (lambda f: f.metadata.update({"llama.expert_count": 8}), "llama.expert_count"),
        (lambda f: f.metadata.update({"llama.rope.scaling.type": "yarn"}), "rope scaling 'yarn'"),
        (lambda f: f.metadata.update({"llama.rope.dimension_count": 8}), "rope.dimension_count 8"),
        (lambda f: f.metadata.pop("llama.block_count"), "llama.block_count must be one integer"),
        (lambda f: f.metadata.pop("llama.attention.layer_norm_rms_epsilon"), "must be a number"),
        (
            lambda f: f.tensors.pop("blk.1.ffn_up.weight"),
            r"lacks the tensors model.layers.1.mlp.up_proj.weight",
        ),
        (lambda f: f.tensors.update({"blk.0.ssm_a": np.zeros(4, np.float32)}), "no place for.*ssm_a"),
        (_unknown_divisors, "use the model's safetensors folder"),
    ],
)
def test_what_cannot_be_converted_is_refused_by_name(tmp_path, out, make_gguf, change, message):
    file = make_gguf()
    change(file)
    path = file.write(tmp_path / "model.gguf")
    with pytest.raises(ModelError, match=message):
        convert(path, out)
    assert not out.exists()


def test_a_repeated_token_is_refused(tmp_path, out, make_gguf):
    file = make_gguf()
    file.metadata["tokenizer.ggml.tokens"][10] = file.metadata["tokenizer.ggml.tokens"][11]
    with pytest.raises(ModelError, match="more than once"):
        convert(file.write(tmp_path / "model.gguf"), out)


def test_a_truncated_file_is_refused_wherever_it_ends(tmp_path, out, make_gguf):
    path = make_gguf().write(tmp_path / "model.gguf", "Q8_0")
    content = path.read_bytes()
    for keep in [0, 3, 20, 100, 700, 2000, 5000, len(content) // 2, len(content) - 1]:
        path.write_bytes(content[:keep])
        with pytest.raises(ModelError, match="is not a whole GGUF file"):
            convert(path, out)
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == []


def test_an_interrupted_conversion_leaves_nothing(tmp_path, out, make_gguf, monkeypatch):
    path = make_gguf().write(tmp_path / "model.gguf")
    written = our_gguf._with_progress

    def interrupted(tensors, total):
        for n, tensor in enumerate(written(tensors, total)):
            if n == 5:
                raise KeyboardInterrupt
            yield tensor

    monkeypatch.setattr(our_gguf, "_with_progress", interrupted)
    with pytest.raises(KeyboardInterrupt):
        convert(path, out)
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == []


def test_an_existing_folder_is_never_replaced(tmp_path, out, make_gguf):
    out.mkdir()
    with pytest.raises(InputError, match="exists already"):
        convert(make_gguf().write(tmp_path / "model.gguf"), out)


def test_a_gguf_path_is_a_model_name(tmp_path, home, make_gguf, monkeypatch):
    path = make_gguf().write(tmp_path / "my model.gguf", "Q8_0")
    model = load_model(str(path), device="cpu")
    assert model.folder.parent == home / "models"
    assert model.folder.name.startswith("gguf--my-model-")
    monkeypatch.setattr(our_gguf, "convert_into", lambda *_: pytest.fail("converted twice"))
    assert resolve(str(path)) == model.folder
