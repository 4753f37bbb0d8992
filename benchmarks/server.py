"""What the server costs: per call, per batch, and on a real model against the library.

    python -m benchmarks.server [PART]...    writes benchmarks/results/server.json

calls      round trip of an optim_step and of a one-token sample, through the SDK and with plain HTTP, against a server
           that answers at once (`null_server`) and the library's own time for the work. The rest is the engine's.
startup    a fresh Python: the imports, and from `connect()` to the first sample of the tiny model.
occupancy  64 requests for one sample each, sent together: how many of them a decode step advances.
smollm2_sampling, smollm2_training
           a batch of 32 through HTTP and the SDK, against the library in this process, in turns.

The library and the engine never compute at the same time: two processes that share the cores would slow each other.
"""

import argparse
import asyncio
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import tinker
from tinker import types

from benchmarks.limits import RESULTS, machine
from tinker_engine import embedded
from tinker_engine.backends.messages import Done, OpenRun, Train
from tinker_engine.core import journal
from tinker_engine.core.compute import Compute
from tinker_engine.core.records import Op
from tinker_engine.model import tiny
from tinker_engine.model.decoder import Decoder
from tinker_engine.model.load import load_model
from tinker_engine.model.lora import LoraSpec
from tinker_engine.sampling.sampler import Sampler
from tinker_engine.sampling.types import SampleRequest, SamplingParams
from tinker_engine.store.database import Database
from tinker_engine.training.trainer import Trainer
from tinker_engine.training.types import AdamParams, Datum

RANK = 32
SMALLEST = 1  # rank of the adapter whose steps are timed: as little work as there can be
CALLS, ROUNDS, COMPARED = 60, 5, 3
SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
PROMPT = list(range(10, 42))
STEP = json.dumps({"model_id": "r", "seq_id": 1, "adam_params": {"learning_rate": 1e-9}}).encode()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "startup": startup,
        "calls": calls,
        "occupancy": occupancy,
        "smollm2_sampling": smollm2_sampling,
        "smollm2_training": smollm2_training,
    }
    parser.add_argument("parts", nargs="*", choices=[*parts, []], help="default: all")
    chosen = parser.parse_args().parts or list(parts)
    path = RESULTS / "server.json"
    figures = json.loads(path.read_text()) if path.exists() else {}
    for name in chosen:
        print(f"{name} …", file=sys.stderr)
        figures[name] = parts[name]()
        print(json.dumps(figures[name], indent=2))
    head = {
        "command": "python -m benchmarks.server",
        "machine": machine(),
        "tinker": metadata.version("tinker"),
    }
    path.write_text(
        json.dumps(head | {name: figures[name] for name in parts if name in figures}, indent=2) + "\n"
    )


# --- startup ----------------------------------------------------------------------------------------------

FIRST_SAMPLE = """
import time
begun = time.perf_counter()
from tinker import types
from tinker_cookbook import service
started = time.perf_counter()
client = service.connect().create_sampling_client(base_model={model!r})
client.sample(types.ModelInput.from_ints([1, 2, 3]), 1, types.SamplingParams(max_tokens=8)).result()
print(started - begun, time.perf_counter() - started)
"""


def startup() -> dict[str, Any]:
    imports: list[float] = []
    first_samples: list[float] = []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            environment = {k: v for k, v in os.environ.items() if not k.startswith("TINKER_")}
            answer = subprocess.run(
                [sys.executable, "-c", FIRST_SAMPLE.format(model=tiny.NAME)],
                env=environment | {"TINKER_ENGINE_HOME": folder, "TINKER_TELEMETRY": "0"},
                capture_output=True,
                text=True,
                check=True,
            )
        imports.append(float(answer.stdout.split()[0]))
        first_samples.append(float(answer.stdout.split()[1]))
    return {
        "unit": f"seconds, median of {ROUNDS} fresh interpreters",
        "imports": round(statistics.median(imports), 2),
        "connect_to_first_sample": round(statistics.median(first_samples), 2),
        "connect_to_first_sample_by_round": [round(value, 2) for value in first_samples],
    }


# --- calls ------------------------------------------------------------------------------------------------


def calls() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, engine(Path(folder)) as served, null_server() as null:
        clients = {
            "sdk_engine": Sdk(*served),
            "sdk_answers_at_once": Sdk(*null),
            "plain_engine": Plain(*served),
            "plain_answers_at_once": Plain(*null),
        }
        work = library_work()
        times: dict[str, dict[str, list[float]]] = {kind: {} for kind in work}
        for _ in range(ROUNDS):
            for kind, columns in times.items():
                columns.setdefault("library", []).append(median_ms(work[kind]))
                for name, client in clients.items():
                    counted = compute_ms(served[0]) if name == "plain_engine" else 0.0
                    columns.setdefault(name, []).append(median_ms(getattr(client, kind)))
                    if name == "plain_engine":
                        spent = (compute_ms(served[0]) - counted) / CALLS
                        columns.setdefault("compute", []).append(spent)
    figures: dict[str, Any] = {kind: _breakdown(columns) for kind, columns in times.items()}
    figures["unit"] = f"ms, median of {ROUNDS} rounds' medians of {CALLS} calls"
    figures["columns"] = {
        "library": "the work alone, in this process, again and again",
        "compute": "the work as the compute process counted it, in the rhythm of plain requests (a mean)",
        "engine_adds": "plain_engine - plain_answers_at_once - compute: journal, queues, messages between processes",
    }
    figures["parts_of_engine_adds"] = inside()
    return figures


def compute_ms(url: str) -> float:
    """What the compute process has worked so far; it reports a moment after it falls idle."""
    time.sleep(0.3)
    now = counters(url)
    return 1000 * (now["training_seconds_total"] + now["sampling_seconds_total"])


def _breakdown(columns: dict[str, list[float]]) -> dict[str, Any]:
    names = ("plain_engine", "plain_answers_at_once", "compute")
    per_round = zip(*(columns[name] for name in names), strict=True)
    adds = [total - at_once - compute for total, at_once, compute in per_round]
    figures: dict[str, Any] = {name: round(statistics.median(v), 3) for name, v in columns.items()}
    return figures | {
        "engine_adds": round(statistics.median(adds), 3),
        "engine_adds_by_round": [round(value, 3) for value in adds],
    }


class Sdk:
    def __init__(self, url: str, key: str):
        service = tinker.ServiceClient(base_url=url, api_key=key)
        self._training = service.create_lora_training_client(tiny.NAME, rank=SMALLEST)
        self._sampling = service.create_sampling_client(base_model=tiny.NAME)
        self._prompt = types.ModelInput.from_ints(PROMPT)

    def optim_step(self) -> None:
        self._training.optim_step(types.AdamParams(learning_rate=1e-9)).result()

    def sample(self) -> None:
        self._sampling.sample(self._prompt, 1, types.SamplingParams(max_tokens=1)).result()


class Plain:
    """The same two requests per call, with nothing around them."""

    def __init__(self, url: str, key: str):
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc)
        self._headers = {"x-api-key": key, "content-type": "application/json"}
        session = self._json("create_session", {})["session_id"]
        created = {
            "session_id": session,
            "model_seq_id": 0,
            "base_model": tiny.NAME,
            "lora_config": {"rank": SMALLEST},
        }
        self._model = json.loads(self._call("create_model", created))["model_id"]
        sampler = {"session_id": session, "sampling_session_seq_id": 0, "base_model": tiny.NAME}
        self._sampler = self._json("create_sampling_session", sampler)["sampling_session_id"]
        self._seq = 0

    def optim_step(self) -> None:
        self._seq += 1
        params = {"learning_rate": 1e-9}
        self._call("optim_step", {"model_id": self._model, "seq_id": self._seq, "adam_params": params})

    def sample(self) -> None:
        self._seq += 1
        self._call(
            "asample",
            {
                "sampling_session_id": self._sampler,
                "seq_id": self._seq,
                "prompt": {"chunks": [{"tokens": PROMPT}]},
                "sampling_params": {"max_tokens": 1},
            },
        )

    def _call(self, name: str, content: Any) -> bytes:
        return self._post("retrieve_future", {"request_id": self._json(name, content)["request_id"]})

    def _json(self, name: str, content: Any) -> Any:
        return json.loads(self._post(name, content))

    def _post(self, name: str, content: Any) -> bytes:
        self._connection.request("POST", f"/api/v1/{name}", json.dumps(content), self._headers)
        answer = self._connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        return body


def library_work() -> dict[str, Callable[[], object]]:
    decoder, sampler = library(None)
    trainer = Trainer(decoder)
    run = trainer.create_run(LoraSpec(SMALLEST, 0))
    params = AdamParams(learning_rate=1e-9)
    request = SampleRequest(PROMPT, SamplingParams(max_tokens=1))
    return {
        "optim_step": lambda: trainer.optim_step(run, params),
        "sample": lambda: sampler.sample([request]),
    }


def inside() -> dict[str, float]:
    """What the engine does besides HTTP and the work itself: two commits, and a message there and back."""
    with tempfile.TemporaryDirectory() as folder:
        database = Database(f"sqlite:///{folder}/engine.db", durable=False)
        commits = asyncio.run(_commit_times(database))
        database.close()
        round_trip = asyncio.run(_worker_times(Path(folder)))
    return {
        "journal_accept": commits["accept"],
        "journal_answer": commits["answer"],
        "message_to_the_worker_and_back": round_trip,
    }


async def _commit_times(database: Database) -> dict[str, float]:
    times: dict[str, list[float]] = {"accept": [], "answer": []}
    for i in range(CALLS * 2):
        op = Op(f"r:{i}", i, "r", "o", "optim_step", "d" * 64, STEP, None, {}, 0.0)
        started = time.perf_counter()
        await database.write(journal.add_op(op), short=True)
        times["accept"].append(time.perf_counter() - started)
        op.status, op.result, op.media_type, op.finished = "done", b"{}", "application/json", 0.0
        started = time.perf_counter()
        await database.write(journal.finish_op(op), short=True)
        times["answer"].append(time.perf_counter() - started)
    return {name: round(1000 * statistics.median(values), 3) for name, values in times.items()}


async def _worker_times(data: Path) -> float:
    answered = asyncio.Event()
    compute = Compute(
        data,
        durable=False,
        run_bytes=None,
        on_message=lambda message: answered.set() if isinstance(message, Done) else None,
        on_end=lambda _: None,
    )
    await compute.start()
    lora = {"rank": SMALLEST, "seed": 0, "train_attn": True, "train_mlp": True, "train_unembed": True}
    compute.send(OpenRun("r", "c", tiny.NAME, tiny.FOLDER, lora, 1 << 30, None))
    times: list[float] = []
    for i in range(CALLS * 2):
        answered.clear()
        started = time.perf_counter()
        compute.send(Train(f"r:{i}", "r", "create", i))
        await answered.wait()
        times.append(time.perf_counter() - started)
    compute.kill()
    await compute.stop(10)
    return round(1000 * statistics.median(times), 3)


# --- occupancy --------------------------------------------------------------------------------------------


def occupancy() -> dict[str, Any]:
    clients, tokens = 64, 512
    with tempfile.TemporaryDirectory() as folder, engine(Path(folder)) as (url, key):
        service = tinker.ServiceClient(base_url=url, api_key=key)
        sampler = service.create_sampling_client(base_model=tiny.NAME)
        params = types.SamplingParams(max_tokens=tokens, stop=[])
        sampler.sample(types.ModelInput.from_ints(PROMPT), 1, params).result()
        before = counters(url)
        started = time.perf_counter()
        prompts = [types.ModelInput.from_ints([*PROMPT, i]) for i in range(clients)]
        futures = [sampler.sample(prompt, 1, params) for prompt in prompts]
        for future in futures:
            future.result()
        seconds = time.perf_counter() - started
        after = settled_counters(url, before, clients * tokens)
    steps, rows = (after[name] - before[name] for name in ("decode_steps_total", "decode_rows_total"))
    return {
        "requests": clients,
        "tokens_each": tokens,
        "decode_steps": steps,
        "mean_rows": round(rows / steps, 1),
        "requests_per_second": round(clients / seconds, 1),
        "tokens_per_second": round(clients * tokens / seconds),
    }


def counters(url: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line.startswith("tinker_engine_") and "{" not in line)
    return {name.removeprefix("tinker_engine_"): float(value) for name, value in pairs}


def settled_counters(url: str, before: dict[str, float], tokens: int) -> dict[str, float]:
    """The worker reports when it falls idle, a moment after its last answer."""
    while True:
        now = counters(url)
        if now["sampled_tokens_total"] - before["sampled_tokens_total"] >= tokens:
            return now


# --- against the library ----------------------------------------------------------------------------------


BATCH, NEW, LENGTH = 32, 64, 128


def smollm2_sampling() -> dict[str, Any]:
    """In turns, so that whatever else the machine does falls on both; likewise below."""
    _, sampler = library(SMOLLM2)
    prompt = np.random.default_rng(0).integers(0, 49152, 64).tolist()
    request = SampleRequest(prompt, SamplingParams(max_tokens=NEW, stop=[]), num_samples=BATCH)
    with tempfile.TemporaryDirectory() as folder, engine(Path(folder), SMOLLM2) as (url, key):
        client = tinker.ServiceClient(base_url=url, api_key=key).create_sampling_client(base_model=SMOLLM2)
        params = types.SamplingParams(max_tokens=NEW, stop=[])

        def there() -> None:
            client.sample(types.ModelInput.from_ints(prompt), BATCH, params).result()

        return compare(lambda: sampler.sample([request]), there, BATCH * NEW)


def smollm2_training() -> dict[str, Any]:
    decoder, _ = library(SMOLLM2)
    trainer = Trainer(decoder)
    run = trainer.create_run(LoraSpec(RANK, 0))
    tokens = np.random.default_rng(0).integers(0, decoder.spec.vocab_size, (BATCH, LENGTH + 1))
    ones = np.ones(LENGTH, np.float32)
    data = [Datum(row[:-1], {"target_tokens": row[1:], "weights": ones}) for row in tokens]

    def here() -> None:
        trainer.forward_backward(run, data, "cross_entropy")
        trainer.optim_step(run, AdamParams(1e-6))

    with tempfile.TemporaryDirectory() as folder, engine(Path(folder), SMOLLM2) as (url, key):
        service = tinker.ServiceClient(base_url=url, api_key=key)
        client = service.create_lora_training_client(SMOLLM2, rank=RANK)
        sent = [_datum(row, ones) for row in tokens]

        def there() -> None:
            gradient = client.forward_backward(sent, "cross_entropy")
            client.optim_step(types.AdamParams(learning_rate=1e-6)).result()
            gradient.result()

        return compare(here, there, BATCH * LENGTH)


def _datum(tokens: np.ndarray, weights: np.ndarray) -> types.Datum:
    inputs = {
        "target_tokens": types.TensorData(data=tokens[1:].tolist(), dtype="int64"),
        "weights": types.TensorData(data=weights.tolist(), dtype="float32"),
    }
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1].tolist()), loss_fn_inputs=inputs)


def compare(here: Callable[[], object], there: Callable[[], object], tokens: int) -> dict[str, Any]:
    here()
    there()
    times: dict[str, list[float]] = {"library": [], "server": []}
    for _ in range(COMPARED):
        for name, work in (("library", here), ("server", there)):
            started = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - started)
    ratios = [a / b for a, b in zip(times["library"], times["server"], strict=True)]
    return {
        "model": SMOLLM2,
        "batch": BATCH,
        "tokens": tokens,
        **{f"{name}_tokens_per_second": round(tokens / statistics.median(t), 1) for name, t in times.items()},
        "server_to_library": round(statistics.median(ratios), 3),
        "by_round": [round(ratio, 3) for ratio in ratios],
    }


# --- what they share --------------------------------------------------------------------------------------


def library(name: str | None) -> tuple[Decoder, Sampler]:
    model = load_model(name) if name else load_model()
    decoder = Decoder(model.spec, model.weights)
    return decoder, Sampler(decoder, model.tokenizer, model.eos_token_ids)


@contextmanager
def engine(data: Path, *models: str) -> Iterator[tuple[str, str]]:
    running = embedded.start_or_join(data, models=models)
    try:
        yield running.url, running.key
    finally:
        running.stop()


@contextmanager
def null_server() -> Iterator[tuple[str, str]]:
    command = [
        sys.executable,
        "-m",
        "uvicorn",
        "benchmarks.null_server:app",
        "--port",
        "0",
        "--http",
        "httptools",
    ]
    command += ["--no-access-log", "--lifespan", "off"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    line = next(line for line in process.stderr if "running on" in line)
    try:
        yield line.split("running on ")[1].split()[0], "tml-anything"
    finally:
        process.terminate()
        process.communicate()


def median_ms(work: Callable[[], object]) -> float:
    times: list[float] = []
    for _ in range(CALLS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return 1000 * statistics.median(times)


if __name__ == "__main__":
    main()
