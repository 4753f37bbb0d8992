"""The model that comes with the engine is what its card, its log and its figures say."""

import hashlib
import json
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from scripts.tiny_chat.card import card
from scripts.tiny_chat.evaluate import Talker, measure_task
from tinker_engine.model import tiny
from tinker_engine.model.decoder import Decoder
from tinker_engine.model.folders import DEFAULT_MODEL
from tinker_engine.model.load import load_model
from tinker_engine.model.tokenizer import Tokenizer
from tinker_engine.sampling.sampler import Sampler
from tinker_engine.sampling.types import SampleRequest, SamplingParams
from tinker_engine.training.trainer import Trainer
from tinker_engine.training.types import Datum

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
LOG = [json.loads(line) for line in (RESULTS / "tiny_chat_training.jsonl").read_text().splitlines()]
FIGURES = json.loads((RESULTS / "tiny_chat_figures.json").read_text())


@pytest.fixture(scope="module")
def talker() -> Talker:
    return Talker.of(load_model(dtype="float32", device="cpu"))


def test_it_is_the_default_and_small():
    model = load_model()
    assert DEFAULT_MODEL == model.name == "tinker-engine/tiny-chat"
    assert 2e6 <= sum(weight.numel() for weight in model.weights.values()) <= 5e6
    assert sum(path.stat().st_size for path in tiny.FOLDER.glob("*.*")) <= 10e6
    assert model.spec.max_context >= 1024
    assert model.tokenizer.vocab_size <= 1024
    assert [model.tokenizer.decode([i]) for i in model.eos_token_ids] == ["<|im_end|>", "<|endoftext|>"]


def test_it_is_in_the_package():
    files = {path.name for path in resources.files("tinker_engine.model.tiny").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja", "README.md"} <= files


def test_the_log_and_the_figures_are_of_these_weights():
    digest = hashlib.sha256((tiny.FOLDER / "model.safetensors").read_bytes()).hexdigest()
    assert LOG[-1]["weights_sha256"] == FIGURES["weights_sha256"] == digest
    steps = [line["step"] for line in LOG if "loss" in line]
    assert steps == sorted(set(steps))
    assert steps[-1] == LOG[0]["plan"]["steps"]
    assert LOG[-2]["seconds"] < 3600


def test_the_card_is_written_from_the_log_and_the_figures():
    assert (tiny.FOLDER / "README.md").read_text() == card(LOG, FIGURES)


def test_transformers_reads_the_same_logits(talker):
    tokens = list(np.random.default_rng(0).integers(0, 1024, 1024))
    reference = AutoModelForCausalLM.from_pretrained(tiny.FOLDER, dtype=torch.float32)
    with torch.inference_mode():
        logits = reference(torch.tensor(tokens)[None]).logits[0].log_softmax(-1)
    everything = np.broadcast_to(np.arange(1024), (len(tokens) - 1, 1024))
    request = SampleRequest(
        tokens[:1023], SamplingParams(max_tokens=1), target_prompt_logprobs=everything[:1022]
    )
    (result,) = talker.sampler.sample([request])
    assert result.target_prompt_logprobs is not None
    assert np.abs(result.target_prompt_logprobs - logits[:1022].numpy()).max() < 1e-4


@given(st.text())
def test_any_text_encodes_as_in_transformers(text):
    ours, theirs = Tokenizer.from_folder(tiny.FOLDER), AutoTokenizer.from_pretrained(tiny.FOLDER)
    assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]
    assert ours.decode(ours.encode(text)) == text


def test_sampler_and_trainer_agree_over_the_whole_context(talker):
    prompt = talker.tokenizer.encode("<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n")
    request = SampleRequest(prompt, SamplingParams(seed=0, stop=[], max_tokens=1024 - len(prompt)))
    (result,) = talker.sampler.sample([request])
    full = prompt + result.sequences[0].tokens
    assert len(full) == 1024
    datum = Datum(full[:-1], {"target_tokens": full[1:], "weights": [1.0] * 1023})
    (scored,) = Trainer(talker.sampler.decoder).forward(None, [datum], "cross_entropy").logprobs
    gap = scored[len(prompt) - 1 :] - torch.tensor(result.sequences[0].logprobs)
    assert gap.abs().max() < 1e-4


# Ranges of the share that is right at temperature 1: room to succeed, and room to grow.
RANGES = {
    "arithmetic": (0.3, 0.6),
    "formats": (0.2, 0.6),
    "copy": (0.3, 0.6),
    "reverse": (0.3, 0.6),
    "sort": (0.3, 0.6),
    "compare": (0.3, 0.65),
    "tools": (0.2, 0.5),
    "tictactoe": (0.5, 0.8),
    "judge_shorter": (0.52, 0.75),
}


@pytest.mark.parametrize("name", RANGES)
def test_skills_start_where_training_can_show_a_climb(name):
    low, high = RANGES[name]
    assert low <= FIGURES["tasks"][name]["test, temperature 1"]["right"]["mean"] <= high


@pytest.mark.parametrize("name", ["arithmetic", "formats", "tools"])
def test_the_figures_can_be_had_again(talker, name):
    """On other problems; so few of them that five standard errors are 25 points."""
    figure = measure_task(talker, name, split="test", count=100, temperature=1.0, seed=7)["right"]
    assert isinstance(figure, dict)
    committed = FIGURES["tasks"][name]["test, temperature 1"]["right"]["mean"]
    assert abs(figure["mean"] - committed) < 0.25


def test_it_forgets_nothing_when_many_talk_at_once(talker):
    prompt = talker.tokenizer.encode("<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n")
    params = SamplingParams(temperature=0, max_tokens=32)
    alone = Sampler(talker.sampler.decoder, talker.tokenizer, [2]).sample([SampleRequest(prompt, params)])
    together = talker.sampler.sample([SampleRequest(prompt, params)] * 32)
    assert all(result.sequences[0].tokens == alone[0].sequences[0].tokens for result in together)


def test_a_decoder_of_it_loads_from_any_folder(tmp_path):
    import shutil

    shutil.copytree(tiny.FOLDER, tmp_path / "copy")
    model = load_model(str(tmp_path / "copy"))
    assert Decoder(model.spec, model.weights).spec == load_model().spec
