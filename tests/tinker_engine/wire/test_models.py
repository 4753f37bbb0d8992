"""create_model and optim_step."""

import json
from typing import Any

import pytest
from tinker import types
from tinker._compat import model_dump

from tinker_engine.errors import InputError
from tinker_engine.model.lora import LoraSpec
from tinker_engine.training.types import AdamParams
from tinker_engine.wire.body import read_json
from tinker_engine.wire.create_model import read_create_model
from tinker_engine.wire.fields import Fields
from tinker_engine.wire.optimizer import read_optim_step


def posted(request: Any) -> Fields:
    """A request as the SDK sends it."""
    body = model_dump(request, exclude_unset=False, exclude_none=True, mode="json")
    return read_json(json.dumps(body).encode())


def optim_step(params: Any) -> Fields:
    return posted(types.OptimStepRequest(optim_params=params, model_id="s:train:0", seq_id=2))


def create_model(**more: Any) -> Fields:
    request = types.CreateModelRequest(session_id="s", model_seq_id=0, base_model="tiny", **more)
    return posted(request)


def test_the_sdk_s_adam_defaults_are_ours():
    call = read_optim_step(optim_step(types.AdamParams()))
    assert (call.model_id, call.seq_id, call.params) == ("s:train:0", 2, AdamParams())


def test_adam_settings_arrive():
    settings = {
        "learning_rate": 1e-3,
        "beta1": 0.5,
        "beta2": 0.6,
        "eps": 1e-8,
        "weight_decay": 0.1,
        "grad_clip_norm": 1.0,
    }
    assert read_optim_step(optim_step(types.AdamParams(**settings))).params == AdamParams(**settings)


def test_missing_adam_settings_have_the_sdk_s_defaults():
    for body in ({}, {"adam_params": {}}, {"adam_params": None}):
        assert read_optim_step(Fields({"model_id": "m", "seq_id": 1, **body})).params == AdamParams()


def test_another_optimizer_is_refused_at_a_step():
    with pytest.raises(InputError, match=r"only AdamW is supported; .* instead of 'dimuon'"):
        read_optim_step(optim_step(types.DimuonParams(learning_rate=1e-3)))


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"seq_id": 1}, "model_id"),
        ({"model_id": "m"}, "seq_id"),
        ({"model_id": "m", "seq_id": 0}, "seq_id"),
        ({"model_id": "m", "seq_id": 1, "adam_params": [1]}, "adam_params"),
        ({"model_id": "m", "seq_id": 1, "adam_params": {"beta1": "x"}}, "adam_params.beta1"),
        ({"model_id": "m", "seq_id": 1, "adam_params": {"eps": True}}, "adam_params.eps"),
        ({"model_id": "m", "seq_id": 1, "adam_params": {"eps": float("nan")}}, "adam_params.eps"),
        ({"model_id": "m", "seq_id": 1, "optimizer_params": {}}, "optimizer_params.type"),
    ],
)
def test_a_bad_step_is_refused_by_its_path(body: dict[str, object], field: str):
    with pytest.raises(InputError) as caught:
        read_optim_step(Fields(body))
    assert caught.value.field == field


def test_the_sdk_s_lora_defaults_are_ours():
    call = read_create_model(create_model(lora_config=types.LoraConfig(rank=8)))
    assert (call.session_id, call.model_seq_id, call.base_model) == ("s", 0, "tiny")
    assert call.lora == LoraSpec(rank=8)
    assert call.user_metadata is None


def test_lora_settings_arrive():
    config = types.LoraConfig(rank=4, seed=2**63, train_attn=False, train_mlp=True, train_unembed=False)
    call = read_create_model(create_model(lora_config=config, user_metadata={"a": [1]}))
    assert call.lora == LoraSpec(4, 2**63, train_attn=False, train_mlp=True, train_unembed=False)
    assert call.user_metadata == {"a": [1]}


def test_a_model_without_lora_is_refused():
    with pytest.raises(InputError, match="only LoRA is trained here"):
        read_create_model(create_model())


def test_another_optimizer_is_refused_at_creation():
    config = types.DimuonOptimizerConfig()
    with pytest.raises(InputError, match=r"optimizer_config\.type: only AdamW is supported; .*'dimuon'"):
        read_create_model(create_model(lora_config=types.LoraConfig(rank=8), optimizer_config=config))


@pytest.mark.parametrize(
    ("lora", "field"),
    [
        ({}, "lora_config.rank"),
        ({"rank": 0}, "lora_config.rank"),
        ({"rank": 8.0}, "lora_config.rank"),
        ({"rank": True}, "lora_config.rank"),
        ({"rank": 8, "seed": 2**64}, "lora_config.seed"),
        ({"rank": 8, "train_mlp": 1}, "lora_config.train_mlp"),
        ("rank 8", "lora_config"),
    ],
)
def test_a_bad_lora_config_is_refused_by_its_path(lora: object, field: str):
    body = {"session_id": "s", "model_seq_id": 0, "base_model": "tiny", "lora_config": lora}
    with pytest.raises(InputError) as caught:
        read_create_model(Fields(body))
    assert caught.value.field == field
