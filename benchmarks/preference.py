"""What the ways to train on preferences cost.

    python -m benchmarks.preference [PART]...    adds to benchmarks/results/preference.json, and a PNG each

one_request  DPO steps by forward_backward_custom (two requests: logprobs, then the gradient) and with the loss computed
             by the engine (one request), in turns, on the tiny model and on SmolLM2-135M, which has to be pulled
             before: tinker-engine pull HuggingFaceTB/SmolLM2-135M-Instruct. About five minutes on two cores.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tinker
from tqdm import tqdm

from benchmarks.limits import RESULTS, machine
from benchmarks.server import engine
from tinker_cookbook.preference.objective import Objective, Scored
from tinker_cookbook.preference.server_losses import loss_config, pair_datums
from tinker_engine.model import tiny

SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
ROUNDS = 7  # of each way; the median counts, and the first is not among them
ROUTES = ("two_requests", "one_request")


@dataclass(frozen=True)
class Workload:
    pairs: int
    prompt: int  # tokens, the same on both sides
    answer: int


WORKLOADS = {
    tiny.NAME: [Workload(16, 32, 32), Workload(16, 128, 64)],
    SMOLLM2: [Workload(4, 32, 96), Workload(4, 128, 64)],
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts: dict[str, Callable[[], dict[str, Any]]] = {"one_request": one_request}
    parser.add_argument("parts", nargs="*", choices=[*parts, []], help="default: all")
    chosen = parser.parse_args().parts or list(parts)
    path = RESULTS / "preference.json"
    figures = json.loads(path.read_text()) if path.exists() else {}
    for name in chosen:
        print(f"{name} …", file=sys.stderr)
        figures[name] = parts[name]()
        print(json.dumps(figures[name], indent=2))
    head = {"command": "python -m benchmarks.preference", "machine": machine()}
    path.write_text(
        json.dumps(head | {name: figures[name] for name in parts if name in figures}, indent=2) + "\n"
    )
    if "one_request" in chosen:
        draw(figures["one_request"]["figures"], RESULTS / "preference_one_request.png")


def one_request() -> dict[str, Any]:
    figures: list[dict[str, Any]] = []
    for model, workloads in WORKLOADS.items():
        with tempfile.TemporaryDirectory() as folder, engine(Path(folder), model) as (url, key):
            service = tinker.ServiceClient(base_url=url, api_key=key)
            for workload in workloads:
                client = service.create_lora_training_client(model, rank=32, seed=0)
                seconds = time_routes(client, workload, model)
                tokens = 2 * workload.pairs * (workload.prompt + workload.answer)
                figures.append(
                    {
                        "model": model,
                        **asdict(workload),
                        **{
                            f"{route}_tokens_per_second": round(tokens / seconds[route], 1)
                            for route in ROUTES
                        },
                        "times_faster": round(seconds["two_requests"] / seconds["one_request"], 2),
                    }
                )
    return {
        "rounds": ROUNDS,
        "lora_rank": 32,
        "tokens": "of both sides, the prompt twice",
        "figures": figures,
    }


def time_routes(client: tinker.TrainingClient, workload: Workload, model: str) -> dict[str, float]:
    """Median seconds of a step, each with its optimizer step. In turns, so that a busy neighbour slows both."""
    data = random_pairs(workload)
    reference = [-5.0 * workload.answer] * len(data)
    objective = Objective("dpo", 0.1, {})
    config = loss_config("dpo", objective.options, workload.pairs)

    def two_requests() -> tinker.APIFuture[tinker.ForwardBackwardOutput]:
        return client.forward_backward_custom(
            data, lambda same, logprobs: objective(Scored(same, logprobs, reference))
        )

    def one_request() -> tinker.APIFuture[tinker.ForwardBackwardOutput]:
        return client.forward_backward(pair_datums(data, reference), "custom", config)

    times: dict[str, list[float]] = {route: [] for route in ROUTES}
    for _ in tqdm(range(ROUNDS + 1), desc=f"{model} {workload.prompt}+{workload.answer}", unit="round"):
        for route, submit in zip(ROUTES, (two_requests, one_request), strict=True):
            started = time.perf_counter()
            gradient = submit()
            client.optim_step(tinker.AdamParams(learning_rate=1e-5)).result()
            gradient.result()
            times[route].append(time.perf_counter() - started)
    return {route: statistics.median(values[1:]) for route, values in times.items()}


def random_pairs(workload: Workload) -> list[tinker.Datum]:
    generator = np.random.default_rng(0)
    size = workload.prompt + workload.answer
    weights = [float(i >= workload.prompt - 1) for i in range(size)]
    data: list[tinker.Datum] = []
    for _ in range(workload.pairs):
        prompt = generator.integers(10, 900, workload.prompt).tolist()
        for _ in range(2):
            tokens = prompt + generator.integers(10, 900, workload.answer + 1).tolist()
            inputs = {
                "target_tokens": tinker.TensorData(data=tokens[1:], dtype="int64", shape=[size]),
                "weights": tinker.TensorData(data=weights, dtype="float32", shape=[size]),
            }
            data.append(tinker.Datum(tinker.ModelInput.from_ints(tokens[:-1]), inputs))
    return data


def draw(figures: list[dict[str, Any]], path: Path) -> None:
    """Bars per workload, relative to two requests: models differ too much for one axis of tokens."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(8, 3.2), layout="constrained")
    axes = picture.subplots()
    labels = [
        f"{each['model'].split('/')[-1]}\n{each['pairs']} pairs, {each['prompt']}+{each['answer']} tokens"
        for each in figures
    ]
    for offset, (route, colour) in enumerate(zip(ROUTES, ("#D55E00", "#0072B2"), strict=True)):
        rates = [each[f"{route}_tokens_per_second"] for each in figures]
        heights = [
            rate / each["two_requests_tokens_per_second"] for rate, each in zip(rates, figures, strict=True)
        ]
        places = [i + 0.4 * offset for i in range(len(figures))]
        bars = axes.bar(places, heights, 0.38, color=colour, label=route.replace("_", " "))
        axes.bar_label(bars, [f"{rate:,.0f}/s" for rate in rates], fontsize=8)
    axes.set_xticks([i + 0.2 for i in range(len(figures))], labels, fontsize=8)
    axes.set_ylabel("speed of a DPO step")
    axes.legend(loc="lower right")
    picture.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
