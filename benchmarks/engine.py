"""Training and sampling speed of the library on SmolLM2-135M, as a fraction of what the machine can do.

    python -m benchmarks.engine        writes benchmarks/results/engine.json (about ten minutes on two cores)

Every figure is the median of three rounds, and the machine's limits are measured before and after each round:
a neighbour on a shared machine slows both.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks.limits import write

import numpy as np  # isort: skip
import torch
from tqdm import tqdm

from tinker_engine.model.decoder import Decoder
from tinker_engine.model.load import load_model
from tinker_engine.model.lora import LoraSpec
from tinker_engine.model.tokenizer import Tokenizer
from tinker_engine.planning.cost import Cost, decode_step, training_step
from tinker_engine.planning.limits import Limits, measure
from tinker_engine.sampling.sampler import Sampler
from tinker_engine.sampling.types import SampleRequest, SamplingParams
from tinker_engine.training.trainer import Trainer
from tinker_engine.training.types import AdamParams, Datum

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
LORA = LoraSpec(rank=32, seed=0)
PROMPT, NEW = 64, 48  # tokens of a decode measurement
REPEATS = 2  # steps of a training round
ROUNDS = 3


def training_seconds(
    decoder: Decoder, sequences: int, length: int, *, lora: LoraSpec = LORA, repeats: int = REPEATS
) -> list[float]:
    """forward_backward and optim_step on sequences of random tokens, all of them trained on."""
    trainer = Trainer(decoder)
    run = trainer.create_run(lora)
    generator = np.random.default_rng(0)
    data = [
        Datum(tokens[:-1], {"target_tokens": tokens[1:], "weights": np.ones(length, dtype=np.float32)})
        for tokens in generator.integers(0, decoder.spec.vocab_size, (sequences, length + 1))
    ]
    times: list[float] = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        trainer.forward_backward(run, data, "cross_entropy")
        trainer.optim_step(run, AdamParams())
        times.append(time.perf_counter() - started)
    return times[1:]


def decode_seconds(
    decoder: Decoder,
    tokenizer: Tokenizer,
    rows: int,
    *,
    lora: bool,
    adapters: int = 1,
    prompt_tokens: int = PROMPT,
    new_tokens: int = NEW,
) -> list[float]:
    """Steps of `rows` unrelated requests, all in mid-sample; with `lora`, of so many adapters by turns."""
    trainer = Trainer(decoder)
    of_rows = [trainer.create_run(LORA).adapter.snapshot() if lora else None for _ in range(adapters)]
    generator = np.random.default_rng(0)
    sampler = Sampler(decoder, tokenizer, [])
    for row in range(rows):
        prompt = generator.integers(0, decoder.spec.vocab_size, prompt_tokens).tolist()
        params = SamplingParams(max_tokens=new_tokens, seed=row, stop=[])
        sampler.submit(SampleRequest(prompt, params, adapter=of_rows[row % adapters]))
    while len(sampler.scheduler.rows) < rows:
        sampler.step()
    times: list[float] = []
    while len(sampler.scheduler.rows) == rows:
        started = time.perf_counter()
        sampler.step()
        times.append(time.perf_counter() - started)
    return times[:-1]


def figure(cost: Cost, tokens: int, work: Callable[[], list[float]]) -> dict[str, Any]:
    """The median of several rounds, each held against the limits as they were around it."""
    rounds: list[tuple[float, float, Limits]] = []
    before = measure(0.5)
    for _ in range(ROUNDS):
        seconds = statistics.median(work())
        after = measure(0.5)
        limits = Limits((before.gemm_flops + after.gemm_flops) / 2, (before.bandwidth + after.bandwidth) / 2)
        rounds.append((cost.seconds(limits) / seconds, seconds, limits))
        before = after
    fraction, seconds, limits = sorted(rounds, key=lambda each: each[0])[ROUNDS // 2]
    return {
        "tokens_per_second": round(tokens / seconds, 1),
        "limit_tokens_per_second": round(tokens / cost.seconds(limits), 1),
        "fraction_of_limit": round(fraction, 3),
        "fractions_of_all_rounds": [round(each[0], 3) for each in rounds],
        "gemm_gflops": round(limits.gemm_flops / 1e9, 1),
        "bandwidth_gbytes": round(limits.bandwidth / 1e9, 1),
    }


def main() -> None:
    model = load_model(MODEL)
    decoder = Decoder(model.spec, model.weights)
    spec = model.spec
    figures: dict[str, Any] = {}
    context = PROMPT + NEW / 2
    jobs: list[tuple[str, Cost, int, Any]] = []
    for sequences, length in ((4, 512), (16, 128)):
        cost = training_step(spec, LORA, sequences, length)
        name = f"training, {sequences} sequences of {length}, LoRA rank {LORA.rank}"
        jobs.append(
            (name, cost, sequences * length, lambda s=sequences, n=length: training_seconds(decoder, s, n))
        )
    for rows in (1, 8, 32, 64):
        for lora in (False, True):
            cost = decode_step(spec, LORA if lora else None, rows, context)
            name = f"decode, batch {rows}, {f'LoRA rank {LORA.rank}' if lora else 'base model'}"
            jobs.append(
                (name, cost, rows, lambda r=rows, x=lora: decode_seconds(decoder, model.tokenizer, r, lora=x))
            )
    for name, cost, tokens, work in tqdm(jobs, unit="figure"):
        figures[name] = result = figure(cost, tokens, work)
        tqdm.write(
            f"{name:50} {result['tokens_per_second']:7.1f} tokens/s, {result['fraction_of_limit']:6.1%} of the limit"
        )
    print(
        f"written to {write('engine', 'python -m benchmarks.engine', {'model': MODEL, 'figures': figures}).name}"
    )


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
