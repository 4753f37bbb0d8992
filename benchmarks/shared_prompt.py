"""What it saves to compute the prompt of a group once in a training step, forwards and backwards.

    python -m benchmarks.shared_prompt      writes benchmarks/results/shared_prompt.json (about ten minutes)

Groups of 8 and 16 samples of 64 tokens, prompts of 100, 500 and 1,000 tokens, SmolLM2-135M, LoRA of rank 32. The plain
path is the same trainer with sharing turned off; both take turns. Gradients are compared as well.
"""

import functools
import statistics
import time
from typing import Any

from benchmarks.limits import write

import numpy as np  # isort: skip
import torch
from tqdm import tqdm

from tinker_engine.model.decoder import Decoder
from tinker_engine.model.load import load_model
from tinker_engine.model.lora import LoraSpec
from tinker_engine.training import packing, trainer
from tinker_engine.training.trainer import Trainer
from tinker_engine.training.types import Datum

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
LORA = LoraSpec(rank=32, seed=0)
ANSWER = 64
ROUNDS = 3
SHARED, PLAIN = packing.pack, functools.partial(packing.pack, min_shared=1 << 30)


def group(prompt: int, samples: int, vocabulary: int) -> list[Datum]:
    """Answers to one prompt, with advantages of both signs that add up to nothing."""
    generator = np.random.default_rng(0)
    beginning = generator.integers(0, vocabulary, prompt)
    data: list[Datum] = []
    for sample in range(samples):
        full = np.concatenate((beginning, generator.integers(0, vocabulary, ANSWER)))
        acted = np.arange(len(full) - 1) >= prompt - 1
        inputs: dict[str, Any] = {
            "target_tokens": full[1:],
            "logprobs": np.where(acted, -10.0, 0.0).astype(np.float32),
            "advantages": np.where(acted, 1 - 2 * (sample % 2), 0).astype(np.float32),
        }
        data.append(Datum(full[:-1], inputs))
    return data


def seconds_and_gradient(decoder: Decoder, data: list[Datum], pack: Any) -> tuple[float, torch.Tensor]:
    trainer.pack = pack
    made = Trainer(decoder)
    run = made.create_run(LORA)
    run.adapter.flat.add_(
        torch.randn(run.adapter.flat.shape, generator=torch.Generator().manual_seed(1)), alpha=1e-3
    )
    started = time.perf_counter()
    made.forward_backward(run, data, "importance_sampling")
    return time.perf_counter() - started, run.grad


def main() -> None:
    model = load_model(MODEL)
    decoder = Decoder(model.spec, model.weights)
    seconds_and_gradient(decoder, group(100, 8, model.spec.vocab_size), SHARED)  # warm
    figures: dict[str, Any] = {}
    for prompt in tqdm((100, 500, 1000), unit="prompt"):
        for samples in (8, 16):
            data = group(prompt, samples, model.spec.vocab_size)
            rounds = [
                [seconds_and_gradient(decoder, data, pack) for pack in (SHARED, PLAIN)] for _ in range(ROUNDS)
            ]
            (_, own), (_, plain) = rounds[0]
            taken = [[seconds for seconds, _ in each] for each in rounds]
            ratios = [plainly / shared for shared, plainly in taken]
            figures[f"prompt {prompt}, {samples} samples"] = {
                "seconds_shared": round(statistics.median(shared for shared, _ in taken), 2),
                "seconds_plain": round(statistics.median(plainly for _, plainly in taken), 2),
                "ratio": round(statistics.median(ratios), 2),
                "ratios_of_all_rounds": [round(ratio, 2) for ratio in ratios],
                "tokens_shared": prompt + samples * ANSWER - samples,
                "tokens_plain": samples * (prompt + ANSWER - 1),
                "relative_difference_of_gradients": float((own - plain).norm() / plain.norm()),
            }
            tqdm.write(f"{prompt} {samples} {figures[f'prompt {prompt}, {samples} samples']}")
    command = "python -m benchmarks.shared_prompt"
    print(f"written to {write('shared_prompt', command, {'model': MODEL, 'figures': figures}).name}")


if __name__ == "__main__":
    main()
