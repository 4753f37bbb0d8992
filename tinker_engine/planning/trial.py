"""A workload for real: two training steps and one batch of samples, in a process of its own.

Its own, so that the peak of its memory is the workload's and not that of whoever asks.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import tinker_engine  # noqa: F401  (sets how OpenMP's threads wait, before torch is imported)

import numpy as np  # isort: skip
from tqdm import tqdm

from tinker_engine.errors import EngineError
from tinker_engine.model.decoder import Decoder
from tinker_engine.model.load import load_model
from tinker_engine.model.lora import LoraSpec
from tinker_engine.planning.prediction import Speed
from tinker_engine.planning.workload import Workload
from tinker_engine.sampling.sampler import Sampler
from tinker_engine.sampling.types import SampleRequest, SamplingParams
from tinker_engine.training.trainer import Trainer
from tinker_engine.training.types import AdamParams, Datum

STEPS = 2


@dataclass(frozen=True)
class Trial:
    peak_bytes: int
    speed: Speed


def measured(model: str, workload: Workload) -> Trial:
    """Runs it; progress goes to stderr."""
    options = [f"--{name.replace('_', '-')}={value}" for name, value in asdict(workload).items()]
    command = [sys.executable, "-P", "-m", "tinker_engine.planning.trial", model, *options]
    # In the order of ours, so that a source tree that was never installed is found and shadows nothing.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
    if done.returncode:
        raise EngineError(
            f"the trial ended with exit code {done.returncode}"
            + (", perhaps for want of memory" if done.returncode == -9 else "; its last lines are above")
        )
    result = json.loads(done.stdout)
    return Trial(result["peak_bytes"], Speed(**result["speed"]))


def run(name: str, workload: Workload) -> Trial:
    with tqdm(total=STEPS + workload.new_tokens + 1, file=sys.stderr, disable=None) as bar:
        bar.set_description("loading")
        model = load_model(name)
        decoder = Decoder(model.spec, model.weights)
        trainer, sampler = Trainer(decoder), Sampler(decoder, model.tokenizer, [])
        lora = trainer.create_run(LoraSpec(rank=workload.rank, seed=0))
        bar.update()
        bar.set_description("training")
        data = _data(workload, decoder.spec.vocab_size)
        steps: list[float] = []
        for _ in range(STEPS):
            with _timed(steps):
                trainer.forward_backward(lora, data, "cross_entropy")
                trainer.optim_step(lora, AdamParams(learning_rate=1e-5))
            bar.update()
        bar.set_description("sampling")
        prompt = [int(token) for token in data[0].tokens[: workload.prompt]]
        request = SampleRequest(
            prompt,
            SamplingParams(max_tokens=workload.new_tokens, seed=0, stop=[]),
            num_samples=workload.samples,
            adapter=lora.adapter.snapshot(),
        )
        batch: list[float] = []
        with _timed(batch):
            ticket = sampler.submit(request)
            while not ticket.done:
                sampler.step()
                bar.update()
    training, sampling = min(steps), batch[0]  # the first step also warms up
    speed = Speed(
        training,
        workload.batch * workload.tokens / training,
        sampling,
        workload.samples * workload.new_tokens / sampling,
    )
    return Trial(_peak_bytes(), speed)


def _data(workload: Workload, vocab_size: int) -> list[Datum]:
    """Random tokens, so that nothing is shared, and a weight on each."""
    draw = np.random.default_rng(0)
    weights = np.ones(workload.tokens, dtype=np.float32)
    return [
        Datum(tokens[:-1], {"target_tokens": tokens[1:], "weights": weights})
        for tokens in draw.integers(0, vocab_size, (workload.batch, workload.tokens + 1))
    ]


@contextmanager
def _timed(into: list[float]) -> Iterator[None]:
    started = time.perf_counter()
    yield
    into.append(time.perf_counter() - started)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    for field in fields(Workload):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=int, required=True)
    options = vars(parser.parse_args())
    model = options.pop("model")
    try:
        print(json.dumps(asdict(run(model, Workload(**options)))))
    except EngineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _peak_bytes() -> int:
    """Of this program alone: what getrusage says on Linux includes its parent's memory when it was started."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        unit = 1 if sys.platform == "darwin" else 1024
        return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    sys.exit(main())
