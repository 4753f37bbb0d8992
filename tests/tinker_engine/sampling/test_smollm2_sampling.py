"""Sampling from the real SmolLM2-135M-Instruct, on machines where it was pulled."""

from pathlib import Path

import pytest
import torch

from tests.tinker_engine.sampling.support import finish, make_request, sample_one, trained_like
from tinker_engine.model.decoder import Decoder
from tinker_engine.model.load import LoadedModel, load_model
from tinker_engine.sampling.sampler import Sampler
from tinker_engine.training.trainer import Trainer
from tinker_engine.training.types import Datum

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def model(smollm2_folder: Path) -> LoadedModel:
    return load_model(str(smollm2_folder), device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def decoder(model: LoadedModel) -> Decoder:
    return Decoder(model.spec, model.weights)


@pytest.fixture
def sampler(model: LoadedModel, decoder: Decoder) -> Sampler:
    return Sampler(decoder, model.tokenizer, model.eos_token_ids, cache_tokens=8192)


def chat(model: LoadedModel, question: str) -> list[int]:
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    turns = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n"
    return model.tokenizer.encode(f"{turns}<|im_start|>assistant\n")


def test_the_capital_of_france(model: LoadedModel, sampler: Sampler):
    question = chat(model, "What is the capital of France?")
    answer = sample_one(sampler, make_request(question, 24, temperature=0, stop=None))
    assert "Paris" in model.tokenizer.decode(answer.tokens)
    assert answer.stop_reason == "stop"
    cut = sample_one(sampler, make_request(question, 24, temperature=0, stop="Par"))
    assert cut.tokens == answer.tokens[: len(cut.tokens)]
    assert (len(cut.tokens), cut.stop_reason) < (len(answer.tokens), "stop")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_sample_is_the_same_alone_and_in_a_mixed_batch(
    temperature: float, model: LoadedModel, decoder: Decoder, sampler: Sampler
):
    watched = make_request(chat(model, "Tell me about the sea."), 24, temperature=temperature)
    alone = sample_one(sampler, watched)
    other = trained_like(decoder, 2, scale=0.01, rank=8).snapshot()

    busy = Sampler(decoder, model.tokenizer, model.eos_token_ids, cache_tokens=1024, prefill_tokens=48)
    before = busy.submit(
        make_request(model.tokenizer.encode("Once upon a time"), 30, num_samples=3, adapter=other)
    )
    for _ in range(3):
        busy.step()
    mine = busy.submit(watched)
    busy.step()
    after = busy.submit(make_request(chat(model, "Tell me about trees."), 12, num_samples=2))
    finish(busy, before, mine, after)
    assert mine.result.sequences == [alone]


def test_sampler_and_trainer_agree(model: LoadedModel, decoder: Decoder, sampler: Sampler):
    adapter = trained_like(decoder, 1, scale=0.01, rank=8).snapshot()
    prompts = [chat(model, question) for question in ("Why is the sky blue?", "Write a poem.")]
    requests = [make_request(prompt, 25, num_samples=20, adapter=adapter) for prompt in prompts]
    data, sampled = list[Datum](), 0
    for prompt, result in zip(prompts, sampler.sample(requests), strict=True):
        for sequence in result.sequences:
            tokens, before = [*prompt, *sequence.tokens], len(prompt) - 1
            inputs = {
                "target_tokens": torch.tensor(tokens[1:]),
                "logprobs": [0.0] * before + sequence.logprobs,
                "advantages": [0.0] * before + [1.0] * len(sequence.tokens),
            }
            data.append(Datum(tokens[:-1], inputs))
            sampled += len(sequence.tokens)
    assert sampled >= 1000
    trainer = Trainer(decoder)
    with_adapter = trainer.forward(adapter, data, "importance_sampling").metrics
    assert with_adapter["logprob_gap:max"] < 1e-4
    assert trainer.forward(None, data[:1], "importance_sampling").metrics["logprob_gap:max"] > 0.1
