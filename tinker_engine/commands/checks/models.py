"""Installed models, and the tiny one at work."""

from collections.abc import Iterator

from tinker_engine.commands.checks.finding import Finding, failed, ok
from tinker_engine.errors import ModelError
from tinker_engine.model import tiny

MOST_GAP = 1e-4  # between the sampler's and the trainer's logprobs of the same tokens, in fp32
_PROMPT = "<|im_start|>user\nWhere does Tavi live?<|im_end|>\n<|im_start|>assistant\n"
_SAMPLED = 16


def installed() -> Iterator[Finding]:
    from tinker_engine.model.folders import installed_models
    from tinker_engine.model.pull import verify

    for name, folder in installed_models():
        try:
            verify(folder)
            yield ok("model", name)
        except ModelError as error:
            again = (
                "reinstall the package"
                if name == tiny.NAME
                else f"rm -r {folder} && tinker-engine pull {name}"
            )
            yield failed("model", f"{name} cannot be used: {error}", again)


def at_work() -> Iterator[Finding]:
    """One step on a sentence must lower its loss; then the sampler and the trainer must agree on what is sampled."""
    before, after, gap = _train_and_sample()
    text = f"loss {before:.2f} → {after:.2f} in one step; sampler and trainer differ by {gap:.1e} in logprobs"
    if after < before and gap < MOST_GAP:
        yield ok("training and sampling", text)
    else:
        yield failed(
            "training and sampling",
            f"{text} (must fall; must be below {MOST_GAP:.0e})",
            "reinstall torch; if that does not help, report this with the output of: tinker-engine doctor --json",
        )


def _train_and_sample() -> tuple[float, float, float]:
    """Loss before and after a step, and the largest difference of logprobs."""
    from tinker_engine.model.decoder import Decoder
    from tinker_engine.model.load import load_model
    from tinker_engine.model.lora import LoraSpec
    from tinker_engine.sampling.sampler import Sampler
    from tinker_engine.sampling.types import SampleRequest, SamplingParams
    from tinker_engine.training.trainer import Trainer
    from tinker_engine.training.types import AdamParams, Datum

    model = load_model(tiny.NAME, dtype="float32")
    decoder = Decoder(model.spec, model.weights)
    trainer, sampler = Trainer(decoder), Sampler(decoder, model.tokenizer, [])
    run = trainer.create_run(LoraSpec(rank=8, seed=0))

    def datum(tokens: list[int]) -> Datum:
        ones = [1.0] * (len(tokens) - 1)
        return Datum(tokens[:-1], {"target_tokens": tokens[1:], "weights": ones})

    sentence = [datum(model.tokenizer.encode(f"{_PROMPT}On the moon.<|im_end|>"))]
    before = trainer.forward_backward(run, sentence, "cross_entropy").metrics["loss:sum"]
    trainer.optim_step(run, AdamParams(learning_rate=1e-3))
    after = trainer.forward(run.adapter, sentence, "cross_entropy").metrics["loss:sum"]

    prompt = model.tokenizer.encode(_PROMPT)
    params = SamplingParams(max_tokens=_SAMPLED, seed=0, stop=[])
    sampled = sampler.sample([SampleRequest(prompt, params, adapter=run.adapter.snapshot())])[0].sequences[0]
    whole = [datum([*prompt, *sampled.tokens])]
    trained = trainer.forward(run.adapter, whole, "cross_entropy").logprobs[0][len(prompt) - 1 :]
    gap = max(abs(a - b) for a, b in zip(sampled.logprobs, trained.tolist(), strict=True))
    return before, after, gap
