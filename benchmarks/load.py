"""Many clients at once for a while: nothing lost, no wrong answer, memory flat.

    python -m benchmarks.load [--seconds 120] [--samplers 64] [--trainers 8]    writes benchmarks/results/load.json

Sampling clients repeat a seeded request, each its own, and compare every answer with the first one given alone.
Training clients train from a seed, and afterwards every number is compared with the same training done alone. All are
real SDK clients, in processes of several each (one process of the SDK does its network work on one thread).
"""

import argparse
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
from tqdm import tqdm

from benchmarks.limits import write
from benchmarks.server import counters
from tinker_engine import embedded
from tinker_engine.model import tiny

PER_PROCESS = 16
TOLERANCE = 1e-4  # of a logprob; a sample's batch changes its last bits


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--samplers", type=int, default=64)
    parser.add_argument("--trainers", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        engine = embedded.start_or_join(Path(folder))
        try:
            figures = load(engine, options.seconds, options.samplers, options.trainers)
        finally:
            engine.stop()
    print(json.dumps(figures, indent=2))
    write("load", "python -m benchmarks.load", figures | {"tinker": metadata.version("tinker")})
    if figures["lost"] or figures["wrong"]:
        sys.exit(1)


def load(engine: embedded.Engine, seconds: float, samplers: int, trainers: int) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    ready, go, results = context.Barrier(-(-samplers // PER_PROCESS) + 2), context.Event(), context.Queue()
    jobs: list[tuple[Callable[..., None], range]] = [
        (sample_for, range(start, min(start + PER_PROCESS, samplers)))
        for start in range(0, samplers, PER_PROCESS)
    ]
    jobs.append((train_for, range(trainers)))
    processes = [
        context.Process(target=work, args=(engine.url, engine.key, clients, seconds, ready, go, results))
        for work, clients in jobs
    ]
    for process in processes:
        process.start()
    ready.wait()
    before, started = counters(engine.url), time.perf_counter()
    go.set()
    memory = watch_memory(engine.pid, seconds)
    reports: list[dict[str, Any]] = [results.get(timeout=900) for _ in processes]
    elapsed = time.perf_counter() - started
    for process in processes:
        process.join()
    after = counters(engine.url)
    steps = after["decode_steps_total"] - before["decode_steps_total"]
    rows = after["decode_rows_total"] - before["decode_rows_total"]
    return {
        "seconds": round(elapsed, 1),
        "sampling_clients": samplers,
        "training_clients": trainers,
        "samples": sum(report["samples"] for report in reports),
        "training_steps": sum(report["steps"] for report in reports),
        "lost": sum(report["lost"] for report in reports),
        "wrong": sum(report["wrong"] for report in reports),
        "largest_logprob_difference": max(report["difference"] for report in reports),
        "fewest_and_most_samples_of_a_client": extent(reports, "samples_by_client"),
        "fewest_and_most_steps_of_a_client": extent(reports, "steps_by_client"),
        "mean_decode_rows": round(rows / max(1.0, steps), 1),
        "compute_restarts": after["compute_restarts_total"],
        "memory_mb": memory,
    }


def extent(reports: list[dict[str, Any]], name: str) -> list[int]:
    counts = [count for report in reports for count in report.get(name, [])]
    return [min(counts), max(counts)] if counts else []


def watch_memory(pid: int, seconds: float) -> dict[str, Any]:
    """Resident memory of the engine's processes by tenth of the time."""
    process = psutil.Process(pid)
    tenths: list[dict[str, float]] = []
    for _ in tqdm(range(10), desc="load", file=sys.stderr):
        time.sleep(seconds / 10)
        tenths.append(
            {
                "api": process.memory_info().rss / 1e6,
                "compute": sum(child.memory_info().rss for child in process.children()) / 1e6,
            }
        )
    return {name: [round(tenth[name]) for tenth in tenths] for name in ("api", "compute")}


def sample_for(url: str, key: str, clients: range, seconds: float, ready: Any, go: Any, results: Any) -> None:
    import tinker
    from tinker import types

    service = tinker.ServiceClient(base_url=url, api_key=key)
    samplers = {i: service.create_sampling_client(base_model=tiny.NAME) for i in clients}

    def ask(client: int) -> Any:
        rng = random.Random(client)
        prompt = types.ModelInput.from_ints([rng.randrange(5, 1000) for _ in range(20 + client)])
        params = types.SamplingParams(max_tokens=8 + client % 24, seed=client, stop=[])
        return samplers[client].sample(prompt, 1 + client % 3, params)

    expected = {client: ask(client).result() for client in clients}
    report = {"samples": 0, "steps": 0, "lost": 0, "wrong": 0, "difference": 0.0}
    counts = dict.fromkeys(clients, 0)
    ready.wait()
    go.wait()
    deadline = time.monotonic() + seconds
    pending = {client: ask(client) for client in clients}
    while pending:
        for client, future in list(pending.items()):
            if not future.done():
                continue
            try:
                wrong, difference = differs(expected[client], future.result())
            except tinker.TinkerError:
                report["lost"] += 1
            else:
                report["samples"] += 1
                report["wrong"] += wrong
                report["difference"] = max(report["difference"], difference)
                counts[client] += 1
            if time.monotonic() < deadline:
                pending[client] = ask(client)
            else:
                del pending[client]
        os.sched_yield() if any(future.done() for future in pending.values()) else time.sleep(0.005)
    results.put(report | {"samples_by_client": list(counts.values())})


def differs(expected: Any, given: Any) -> tuple[bool, float]:
    difference = 0.0
    for a, b in zip(expected.sequences, given.sequences, strict=True):
        if list(a.tokens) != list(b.tokens):
            return True, difference
        difference = max(difference, *(abs(x - y) for x, y in zip(a.logprobs, b.logprobs, strict=True)))
    return difference > TOLERANCE, difference


def train_for(url: str, key: str, clients: range, seconds: float, ready: Any, go: Any, results: Any) -> None:
    from concurrent.futures import ThreadPoolExecutor

    import tinker

    service = tinker.ServiceClient(base_url=url, api_key=key)
    trainings = {client: Training(service, client) for client in clients}
    ready.wait()
    go.wait()
    deadline = time.monotonic() + seconds

    def train(client: int) -> int:
        lost = 0
        while time.monotonic() < deadline:
            try:
                trainings[client].step()
            except tinker.TinkerError:
                lost += 1
        return lost

    with ThreadPoolExecutor(len(clients)) as pool:
        lost = sum(pool.map(train, clients))
    steps = [trainings[client].steps for client in clients]
    wrong = sum(not alone(service, client, trainings[client]) for client in clients)
    results.put(
        {
            "samples": 0,
            "steps": sum(steps),
            "lost": lost,
            "wrong": wrong,
            "difference": 0.0,
            "steps_by_client": steps,
        }
    )


def alone(service: Any, client: int, under_load: "Training") -> bool:
    """Whether the same training, with the engine to itself, returns the same numbers to the last bit."""
    again = Training(service, client)
    while again.steps < under_load.steps:
        again.step()
    return again.numbers == under_load.numbers


class Training:
    """A seeded training, and every number it returned."""

    def __init__(self, service: Any, client: int):
        self._rng = random.Random(client)
        self._run = service.create_lora_training_client(tiny.NAME, rank=4, seed=client)
        self.numbers: list[float] = []
        self.steps = 0

    def step(self) -> None:
        from tinker import types

        data: list[Any] = []
        for _ in range(4):
            tokens = [self._rng.randrange(5, 1000) for _ in range(self._rng.randrange(10, 60))]
            inputs: Any = {"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)}
            data.append(
                types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)
            )
        gradient = self._run.forward_backward(data, "cross_entropy")
        step = self._run.optim_step(types.AdamParams(learning_rate=1e-4))
        self.numbers += [gradient.result().metrics["loss:sum"], *step.result().metrics.values()]
        self.steps += 1


if __name__ == "__main__":
    main()
