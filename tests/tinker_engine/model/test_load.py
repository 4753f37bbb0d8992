import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tinker_engine.errors import ModelError
from tinker_engine.model.folders import resolve
from tinker_engine.model.load import expected_shapes, load_model, load_weights
from tinker_engine.model.spec import ModelSpec

pytestmark = pytest.mark.usefixtures("home")

CPU = torch.device("cpu")


def _load(folder: Path, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    return load_weights(folder, ModelSpec.from_folder(folder), dtype=dtype, device=CPU)


def _rewrite(folder: Path, **changes: torch.Tensor | None) -> None:
    """Set tensors (dots in names written as __), or drop them with None."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name, tensor in changes.items():
        key = name.replace("__", ".")
        tensors.pop(key, None)
        if tensor is not None:
            tensors[key] = tensor
    save_file(tensors, path)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True}),
        ("qwen2", {}),
        ("qwen3", {"head_dim": 32}),
    ],
)
def test_weights_are_those_that_transformers_saved(make_model, make_folder, family, changes):
    model = make_model(family, **changes)
    folder = make_folder(model)
    weights = _load(folder)
    expected = dict(model.named_parameters())
    assert weights.keys() == expected.keys() == expected_shapes(ModelSpec.from_folder(folder)).keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_shards_are_read_together(make_model, make_folder):
    model = make_model()
    folder = make_folder(model, shard="100KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    weights = _load(folder)
    assert all(torch.equal(weights[name], value) for name, value in model.named_parameters())


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
def test_half_precision_is_widened(make_model, make_folder, stored):
    model = make_model().to(stored)
    weights = _load(make_folder(model))
    assert all(torch.equal(weights[n], value.float()) for n, value in model.named_parameters())
    assert {value.dtype for value in weights.values()} == {torch.float32}


def test_load_model_puts_it_together(model_folder):
    model = load_model(str(model_folder), device="cpu", dtype="float64")
    assert model.folder == model_folder
    assert model.spec.num_layers == 2
    assert model.eos_token_ids == (2,)
    assert model.tokenizer.encode("<|im_end|>") == [2]
    assert {value.dtype for value in model.weights.values()} == {torch.float64}


def test_a_missing_tensor_is_named(model_folder):
    _rewrite(model_folder, model__layers__1__mlp__up_proj__weight=None)
    with pytest.raises(ModelError, match=r"lacks the tensors model\.layers\.1\.mlp\.up_proj\.weight;"):
        _load(model_folder)


def test_a_tensor_of_the_wrong_shape_is_named_with_its_file(model_folder):
    _rewrite(model_folder, model__norm__weight=torch.zeros(65))
    with pytest.raises(
        ModelError, match=r"model\.safetensors: model\.norm\.weight has shape \(65,\).*\(64,\)"
    ):
        _load(model_folder)


def test_unknown_tensors_are_listed_but_known_buffers_are_not(model_folder):
    buffers = {"model__layers__0__self_attn__rotary_emb__inv_freq": torch.zeros(8)}
    _rewrite(model_folder, **buffers, lm_head__weight=torch.zeros(320, 64))
    assert "lm_head.weight" not in _load(model_folder)
    _rewrite(model_folder, model__layers__0__mlp__up_proj__weight_scale=torch.zeros(1))
    with pytest.raises(ModelError, match=r"mlp\.up_proj\.weight_scale that LlamaForCausalLM does not have"):
        _load(model_folder)


def test_quantised_numbers_are_refused(model_folder):
    _rewrite(model_folder, model__norm__weight=torch.zeros(64, dtype=torch.int8))
    with pytest.raises(ModelError, match=r"model\.norm\.weight is stored as I8"):
        _load(model_folder)


@pytest.mark.parametrize("keep", [0, 4, 500, -1000, -1])
def test_a_truncated_file_is_named(model_folder, keep):
    path = model_folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelError, match=r"model\.safetensors is damaged or cut short"):
        _load(model_folder)


def test_a_missing_shard_is_named(make_model, make_folder):
    folder = make_folder(make_model(), shard="100KB")
    victim = sorted(folder.glob("*.safetensors"))[1]
    victim.unlink()
    with pytest.raises(ModelError, match=victim.name):
        _load(folder)
    (folder / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(ModelError, match="is not a safetensors index"):
        _load(folder)


def test_a_folder_without_weights_says_what_is_readable(model_folder):
    (model_folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"only safetensors and \.gguf"):
        _load(model_folder)


def test_an_unsupported_architecture_is_refused_by_name(model_folder):
    path = model_folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"architectures": ["MambaForCausalLM"]}))
    with pytest.raises(ModelError, match="MambaForCausalLM is not supported"):
        load_model(str(model_folder))


def test_resolve_finds_pulled_models_by_name(home, model_folder):
    target = home / "models" / "org--tiny"
    target.parent.mkdir(parents=True)
    model_folder.rename(target)
    assert resolve("org/tiny") == target


def test_resolve_finds_the_hub_cache_by_name(tmp_path, model_folder):
    commit = "0" * 40
    repo = tmp_path / "hub" / "models--org--tiny"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(commit)
    (repo / "snapshots").mkdir()
    model_folder.rename(repo / "snapshots" / commit)
    assert resolve("org/tiny") == repo / "snapshots" / commit
    (repo / "snapshots" / commit / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="tinker-engine pull org/tiny"):
        resolve("org/tiny")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("org/absent", "type: tinker-engine pull org/absent"),
        ("org/not--valid", "type: tinker-engine pull org/not--valid"),
        ("absent", "give a model folder, a .gguf file, tinker-engine/tiny-chat, or a hub name"),
        ("absent/model.gguf", "model.gguf does not exist"),
    ],
)
def test_what_is_not_there_says_what_to_do(name, hint):
    with pytest.raises(ModelError, match=hint):
        resolve(name)


def test_a_folder_that_is_no_model_is_refused(tmp_path, monkeypatch):
    (tmp_path / "some" / "folder").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for name in (str(tmp_path / "some"), "some/folder"):
        with pytest.raises(ModelError, match=r"has no config\.json"):
            resolve(name)
