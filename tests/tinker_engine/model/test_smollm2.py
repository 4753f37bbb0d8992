"""The real SmolLM2-135M-Instruct, on machines where it was pulled."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tinker_engine.model.load import LoadedModel

pytestmark = pytest.mark.real


def test_smollm2_is_what_it_says(smollm2: LoadedModel) -> None:
    model = smollm2
    spec = model.spec
    assert (spec.architecture, spec.vocab_size, spec.hidden_size) == ("LlamaForCausalLM", 49152, 576)
    assert (spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (30, 9, 3, 64)
    assert (spec.intermediate_size, spec.max_context, spec.tied_embeddings) == (1536, 8192, True)
    assert (spec.rope.theta, spec.norm_eps) == (100_000.0, 1e-5)
    assert sum(weight.numel() for weight in model.weights.values()) == 134_515_008
    assert 2 in model.eos_token_ids

    tokenizer = model.tokenizer
    assert tokenizer.vocab_size == 49152
    assert tokenizer.encode("123") == [33, 34, 35]  # one token per digit
    assert tokenizer.encode("<|im_start|><|im_end|>") == [1, 2]
    for text in ("Natalia sold 48/2 = <<48/2=24>>24 clips in May.\n#### 72", "naïve 🙂 日本\t\r\n  x", ""):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


def test_transformers_opens_the_folder_and_gets_a_sensible_answer(smollm2_folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2_folder)
    model: Any = AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
    assert prompt.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert prompt.endswith("What is the capital of France?<|im_end|>\n<|im_start|>assistant\n")
    inputs = tokenizer(prompt, return_tensors="pt")
    output = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(output[0, inputs["input_ids"].shape[1] :])
