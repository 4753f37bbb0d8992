"""Adapters on disk, with PEFT on the other side."""

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from torch import Tensor

from tests.tinker_engine.families import FAMILIES, make_decoder, make_reference
from tests.tinker_engine.model.test_decoder import random_adapter, run, sequences
from tinker_engine.errors import ModelError
from tinker_engine.model.decoder import Decoder
from tinker_engine.model.lora import Adapter, LoraBatch, LoraSpec
from tinker_engine.model.lora_io import load_adapter, save_adapter
from tinker_engine.training.packing import pack

CPU = torch.device("cpu")


def own_logits(decoder: Decoder, adapter: Adapter, tokens: Tensor) -> Tensor:
    (batch,) = pack([tokens.numpy()], 1000)
    lora = LoraBatch.single(adapter, len(tokens))
    with torch.no_grad():
        return decoder.logits(run(decoder, batch, lora), lora)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.filterwarnings("ignore::UserWarning")  # PEFT has an opinion on tied heads
def test_peft_loads_what_we_save_and_gives_the_same_logits(family: str, tmp_path: Path) -> None:
    reference = make_reference(family)
    decoder = make_decoder(reference)
    adapter = random_adapter(decoder, LoraSpec(5, seed=0))
    save_adapter(adapter, tmp_path / "adapter", "somebody/model")
    tokens = torch.from_numpy(sequences([30], decoder.spec.vocab_size)[0])
    own = own_logits(decoder, adapter, tokens)
    with torch.no_grad():
        base = reference(tokens[None]).logits[0]
        loaded: Any = peft.PeftModel.from_pretrained(reference, tmp_path / "adapter")
        theirs = loaded(tokens[None]).logits[0]
    torch.testing.assert_close(own, theirs, atol=1e-4, rtol=1e-4)
    assert (own - base).abs().max() > 0.01  # the adapter was not ignored


def test_saving_and_loading_gives_the_same_bits(tmp_path: Path) -> None:
    decoder = make_decoder(make_reference("qwen3"))
    for lora in (
        LoraSpec(3),
        LoraSpec(2, train_attn=False),
        LoraSpec(2, train_mlp=False, train_unembed=False),
    ):
        adapter = random_adapter(decoder, lora)
        save_adapter(adapter, tmp_path / "adapter", "somebody/model")
        again = load_adapter(tmp_path / "adapter", decoder.spec, device=CPU)
        assert torch.equal(adapter.flat, again.flat)
        assert (again.lora.train_attn, again.lora.train_mlp) == (lora.train_attn, lora.train_mlp)


def test_loads_what_peft_saves_with_its_own_alpha_and_targets(tmp_path: Path) -> None:
    reference = make_reference("llama")
    decoder = make_decoder(reference)
    config = peft.LoraConfig(
        r=4,
        lora_alpha=10,
        target_modules=["q_proj", "v_proj"],
        init_lora_weights=False,
        task_type="CAUSAL_LM",
    )
    torch.manual_seed(0)
    model = peft.get_peft_model(reference, config)
    model.save_pretrained(str(tmp_path))
    tokens = torch.from_numpy(sequences([30], decoder.spec.vocab_size)[0])
    with torch.no_grad():
        theirs = model(tokens[None]).logits[0]
    adapter = load_adapter(tmp_path, decoder.spec, device=CPU)
    torch.testing.assert_close(own_logits(decoder, adapter, tokens), theirs, atol=1e-4, rtol=1e-4)


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, Decoder]:
    decoder = make_decoder(make_reference("llama"))
    save_adapter(random_adapter(decoder), tmp_path / "adapter", "somebody/model")
    return tmp_path / "adapter", decoder


@pytest.mark.parametrize("kept", [0, 100, 5000])
def test_a_truncated_file_is_refused(saved: tuple[Path, Decoder], kept: int) -> None:
    folder, decoder = saved
    weights = folder / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])
    with pytest.raises(ModelError, match=r"adapter_model\.safetensors is damaged"):
        load_adapter(folder, decoder.spec, device=CPU)


def test_another_models_adapter_is_refused(saved: tuple[Path, Decoder]) -> None:
    folder, _ = saved
    other = make_decoder(make_reference("mistral")).spec
    with pytest.raises(ModelError, match="shape"):
        load_adapter(folder, other, device=CPU)


@pytest.mark.parametrize("change", [{"use_dora": True}, {"peft_type": "IA3"}, {"r": 0}])
def test_what_is_no_plain_lora_is_refused(saved: tuple[Path, Decoder], change: dict[str, Any]) -> None:
    folder, decoder = saved
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ModelError, match="adapter_config"):
        load_adapter(folder, decoder.spec, device=CPU)


def test_a_missing_file_is_named(saved: tuple[Path, Decoder]) -> None:
    folder, decoder = saved
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"adapter_model\.safetensors is missing"):
        load_adapter(folder, decoder.spec, device=CPU)
