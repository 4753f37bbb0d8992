import itertools
import json
import math

import pytest

from tinker_cookbook import hyperparam_utils
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.hyperparam_tables import HIDDEN_SIZES, LORA_SIZES
from tinker_cookbook.hyperparam_utils import get_lora_param_count, get_lr
from tinker_engine.model import tiny

LLAMA_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}


@pytest.fixture
def offline(monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))


def model(folder, **config) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


# --- learning rates ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("meta-llama/Llama-3.1-8B", 5e-4 * (2000 / 4096) ** 0.781),
        ("Qwen/Qwen3-8B", 5e-4 * (2000 / 4096) ** 0.0775),
        ("Qwen/Qwen3-8B:peft:131072", 5e-4 * (2000 / 4096) ** 0.0775),
        (tiny.NAME, 5e-4 * (2000 / 192) ** 0.781),
    ],
)
def test_a_rate_falls_with_the_width(name, rate):
    assert get_lr(name) == pytest.approx(rate)
    assert get_lr(name, is_lora=False) == pytest.approx(rate / 10)


@pytest.mark.parametrize(
    ("model_type", "exponent"),
    [("llama", 0.781), ("mistral", 0.781), ("qwen2", 0.0775), ("qwen3_moe", 0.0775)],
)
def test_a_model_of_ones_own_is_judged_by_its_architecture(tmp_path, model_type, exponent):
    folder = tmp_path / "a-llama-in-name-only"
    folder.mkdir()
    name = model(folder, model_type=model_type, hidden_size=576)
    assert get_lr(name) == pytest.approx(5e-4 * (2000 / 576) ** exponent)


def test_the_width_may_be_that_of_the_language_part(tmp_path):
    name = model(tmp_path, model_type="qwen3_5", text_config={"hidden_size": 2560})
    assert get_lr(name) == pytest.approx(5e-4 * (2000 / 2560) ** 0.0775)


def test_a_family_that_was_never_measured_is_refused(tmp_path):
    for name in ("openai/gpt-oss-20b", model(tmp_path, model_type="gemma3", hidden_size=640)):
        with pytest.raises(ConfigurationError, match="learning_rate") as caught:
            get_lr(name)
        assert isinstance(caught.value, NotImplementedError)


def test_a_model_that_is_nowhere_says_what_to_do(offline):
    for ask in (get_lr, get_lora_param_count, hyperparam_utils.get_full_finetune_param_count):
        with pytest.raises(ConfigurationError, match="tinker-engine pull nobody/nothing"):
            ask("nobody/nothing")


def test_a_hub_that_does_not_answer_is_no_crash(monkeypatch):
    import huggingface_hub
    from huggingface_hub.utils import httpx

    def refused(name):
        raise httpx.ConnectError("connection refused")

    monkeypatch.setattr(huggingface_hub, "get_safetensors_metadata", refused)
    with pytest.raises(ConfigurationError, match="connection refused"):
        hyperparam_utils.get_full_finetune_param_count("nobody/nothing")


def test_rates_are_carried_from_model_to_model_by_the_root_of_their_sizes():
    count = hyperparam_utils.get_full_finetune_param_count(tiny.NAME)
    assert hyperparam_utils.get_full_finetune_lr_multiplier(tiny.NAME) == pytest.approx(1 / math.sqrt(count))
    assert hyperparam_utils.get_lora_lr_multiplier(tiny.NAME) == pytest.approx(10 / math.sqrt(count))
    assert hyperparam_utils.get_lora_lr_over_full_finetune_lr(tiny.NAME) == 10.0


# --- sizes ------------------------------------------------------------------------------------------------


def test_the_table_is_as_long_as_it_was():
    assert (len(HIDDEN_SIZES), len(LORA_SIZES)) == (39, 38)


@pytest.mark.parametrize("name", LORA_SIZES)
def test_parameters_of_the_table(name):
    sizes = LORA_SIZES[name]
    for flags in itertools.product((False, True), repeat=3):
        if any(flags):
            expected = sum(size for size, flag in zip(sizes, flags, strict=True) if flag)
            assert get_lora_param_count(name, 1, *flags) == expected
            assert get_lora_param_count(name, 64, *flags) == 64 * expected
    assert get_lora_param_count(name) == 32 * sum(sizes)


def test_a_config_gives_the_figures_of_the_table(tmp_path):
    name = model(tmp_path, **LLAMA_8B)
    for flags in ((True, False, False), (False, True, False), (False, False, True)):
        assert get_lora_param_count(name, 8, *flags) == get_lora_param_count(
            "meta-llama/Llama-3.1-8B", 8, *flags
        )


def test_the_engine_trains_as_many_parameters_as_are_counted():
    from tinker_engine.model.lora import LoraSpec, parameter_count
    from tinker_engine.model.spec import ModelSpec

    spec = ModelSpec.from_folder(tiny.FOLDER)
    assert get_lora_param_count(tiny.NAME, 16) == parameter_count(spec, LoraSpec(rank=16))
    without_head = LoraSpec(rank=4, train_unembed=False)
    assert get_lora_param_count(tiny.NAME, 4, train_unembed=False) == parameter_count(spec, without_head)


def test_weights_are_counted_from_their_headers():
    from safetensors import safe_open

    with safe_open(tiny.FOLDER / "model.safetensors", "np") as file:
        shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118  it is no dict
    assert hyperparam_utils.get_full_finetune_param_count(tiny.NAME) == sum(map(math.prod, shapes))


def test_training_nothing_is_refused():
    with pytest.raises(ValueError, match="one of"):
        get_lora_param_count("Qwen/Qwen3-8B", 32, False, False, False)


def test_what_a_config_cannot_tell_is_not_guessed(tmp_path):
    with pytest.raises(ConfigurationError, match="experts"):
        get_lora_param_count(model(tmp_path, **LLAMA_8B, num_experts=8))
    with pytest.raises(ConfigurationError, match="lacks hidden_size"):
        get_lora_param_count(model(tmp_path, model_type="llama"))


def test_a_weights_file_that_was_cut_short_is_named(tmp_path):
    model(tmp_path, **LLAMA_8B)
    with pytest.raises(ConfigurationError, match=r"no \.safetensors"):
        hyperparam_utils.get_full_finetune_param_count(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"\xff\xff\xff\x00\x00\x00\x00\x00{}")
    with pytest.raises(ConfigurationError, match="cut short"):
        hyperparam_utils.get_full_finetune_param_count(str(tmp_path))
