"""Fine-tune a small random model with LoRA on one page of text, and show what changed.

Everything the engine does, in miniature and in under a minute: build a model, put an adapter on it, train,
sample with the adapter from the same weights, and compare the sampler's logprobs with the trainer's.
"""

import re
import sys
import time

import numpy as np
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, trainers
from tqdm import tqdm

from tinker_engine.model.decoder import Decoder
from tinker_engine.model.load import expected_shapes
from tinker_engine.model.lora import Adapter, LoraSpec
from tinker_engine.model.spec import ModelSpec, RopeSpec
from tinker_engine.model.tokenizer import Tokenizer
from tinker_engine.sampling.sampler import Sampler
from tinker_engine.sampling.types import SampledSequence, SampleRequest, SamplingParams
from tinker_engine.training.trainer import Trainer
from tinker_engine.training.types import AdamParams, Datum

STEPS = 40
WINDOW = 64  # tokens of each training sequence
PROMPTS = ("The lighthouse", "Every morning", "At night")

PAGE = """\
The lighthouse at the end of the pier was older than the town. Its keeper, a quiet woman named Mara, climbed the
hundred and twelve steps twice a day: once at dusk to light the lamp, and once at dawn to put it out. She kept a
book in which she wrote the weather, the ships, and one sentence about anything she liked.

Every morning the fishing boats left in a line, like beads on a string. Every evening they came back in no order at
all, and the gulls counted them home. Mara counted them too. If one was missing, she left the lamp burning and
wrote the name of the boat in her book, so that the light would know for whom it was waiting.

One winter the harbour froze. No boats left, and no boats came back, and for eleven days there was nothing to write
but the cold. On the twelfth day she wrote: the light does not need ships to be a light. Then the ice broke with a
sound like a door, and the boats went out in a line, like beads on a string.

At night the beam went round and round, over the water, over the roofs, over the hills behind the town. Children
fell asleep counting it. Some of them grew up and moved to cities without a sea, and found that they still counted
in the dark: one, two, three, four, and then the light.
"""


def main() -> int:
    torch.manual_seed(0)
    tokenizer = page_tokenizer()
    decoder = random_decoder(tokenizer.vocab_size)
    trainer = Trainer(decoder)
    sampler = Sampler(decoder, tokenizer, eos_token_ids=[0])
    run = trainer.create_run(LoraSpec(rank=32, seed=0))
    data = windows(tokenizer)
    tokens = sum(len(datum.tokens) for datum in data)
    frozen = sum(int(np.prod(shape)) for shape in expected_shapes(decoder.spec).values())
    print(f"A random model of {frozen:,} frozen weights, an adapter of {run.adapter.flat.numel():,},")
    print(f"and one page of text as {len(data)} sequences, {tokens} tokens in all.\n")

    before = trainer.forward(run.adapter, data, "cross_entropy").metrics["loss:sum"] / tokens
    samples_before = sample(sampler, tokenizer, run.adapter.snapshot())
    started = time.perf_counter()
    bar = tqdm(range(STEPS), desc="training", unit="step", file=sys.stderr)
    for step in bar:
        output = trainer.forward_backward(run, data, "cross_entropy")
        rate = 1e-2 * (1 - step / STEPS)
        # Losses are plain sums; clipping makes the size of the page irrelevant to the step.
        trainer.optim_step(run, AdamParams(learning_rate=rate, grad_clip_norm=1.0))
        bar.set_postfix(loss=f"{output.metrics['loss:sum'] / tokens:.3f}")
    seconds = time.perf_counter() - started
    after = trainer.forward(run.adapter, data, "cross_entropy").metrics["loss:sum"] / tokens
    snapshot = run.adapter.snapshot()
    samples_after = sample(sampler, tokenizer, snapshot)

    for prompt, old, new in zip(PROMPTS, samples_before, samples_after, strict=True):
        print(f"\n{prompt} …\n  before  {shown(tokenizer, old)}\n  after   {shown(tokenizer, new)}")
    print(f"\nloss per token  before {before:.3f}  after {after:.3f}")
    print(
        f"trained {STEPS * tokens / seconds:,.0f} tokens/s for {seconds:.0f} s on {torch.get_num_threads()} threads"
    )
    print(f"largest gap between sampler's and trainer's logprob: {gap(trainer, tokenizer, snapshot):.1e}")
    return 0


def page_tokenizer() -> Tokenizer:
    """A byte-level BPE of 512 entries that knows the page's words."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=["<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator([PAGE], trainer)
    return Tokenizer(inner)


def random_decoder(vocab_size: int) -> Decoder:
    spec = ModelSpec(
        architecture="LlamaForCausalLM",
        vocab_size=vocab_size,
        hidden_size=128,
        num_layers=4,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        intermediate_size=384,
        max_context=512,
        rope=RopeSpec(),
        norm_eps=1e-5,
        tied_embeddings=False,
    )
    weights = {
        name: torch.ones(shape) if len(shape) == 1 else torch.randn(shape) / shape[-1] ** 0.5
        for name, shape in expected_shapes(spec).items()
    }
    return Decoder(spec, weights)


def windows(tokenizer: Tokenizer) -> list[Datum]:
    """Pieces of the page, one from the start of each sentence on, each predicting its next tokens."""
    data: list[Datum] = []
    for start in [match.start() for match in re.finditer(r"(?:(?<=^)|(?<=[.:]\s)|(?<=\n\n))\w", PAGE)]:
        piece = tokenizer.encode(PAGE[start:])[: WINDOW + 1]
        if len(piece) > 1:
            weights = np.ones(len(piece) - 1, dtype=np.float32)
            data.append(Datum(piece[:-1], {"target_tokens": piece[1:], "weights": weights}))
    return data


def sample(sampler: Sampler, tokenizer: Tokenizer, adapter: Adapter) -> list[SampledSequence]:
    params = SamplingParams(max_tokens=28, seed=1, temperature=0.3)
    requests = [SampleRequest(tokenizer.encode(prompt), params, adapter=adapter) for prompt in PROMPTS]
    return [result.sequences[0] for result in sampler.sample(requests)]


def shown(tokenizer: Tokenizer, sequence: SampledSequence) -> str:
    return " ".join(tokenizer.decode(sequence.tokens).split())


def gap(trainer: Trainer, tokenizer: Tokenizer, adapter: Adapter) -> float:
    """Sample at temperature 1, where the sampler's logprobs are the model's, and score that with the trainer."""
    sampler = Sampler(trainer.decoder, tokenizer, eos_token_ids=[0])
    prompt = tokenizer.encode(PROMPTS[0])
    request = SampleRequest(
        prompt, SamplingParams(max_tokens=64, seed=2, stop=[]), num_samples=4, adapter=adapter
    )
    (result,) = sampler.sample([request])
    worst = 0.0
    for sequence in result.sequences:
        full = prompt + sequence.tokens
        inputs = {"target_tokens": full[1:], "weights": np.zeros(len(full) - 1)}
        scored = trainer.forward(adapter, [Datum(full[:-1], inputs)], "cross_entropy").logprobs[0]
        own = torch.tensor(sequence.logprobs)
        worst = max(worst, float((scored[len(prompt) - 1 :] - own).abs().max()))
    return worst


if __name__ == "__main__":
    sys.exit(main())
