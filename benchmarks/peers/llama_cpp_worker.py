"""llama.cpp with float16 weights, through the C interface that llama-cpp-python wraps.

Its `Llama` class computes one sequence at a time, so the batch is made here: a prompt is computed once and copied to
the samples of its group, every row gets one token a step, and leaves when it is done. Each sequence has its own part
of the cache (`kv_unified` off), for otherwise every row attends to the cells of all and masks them. Tokens are chosen
by numpy for all rows at once.
"""

from dataclasses import dataclass, field
from typing import Any

import llama_cpp as C  # pyright: ignore[reportMissingImports]
import numpy as np
from channel import Channel, Message, Sampled, serve_sampling, versions

PREFILL = 512  # tokens of one call, llama.cpp's default
CELLS = 256  # the cache of a sequence is a multiple of it


@dataclass
class Row:
    sequence: int
    length: int  # of prompt and sample so far, in the cache
    wanted: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def add(self, token: int, logprob: float) -> None:
        self.tokens.append(token)
        self.logprobs.append(logprob)

    @property
    def done(self) -> bool:
        return len(self.tokens) == self.wanted


class Model:
    def __init__(self, setup: Message):
        C.llama_backend_init()
        self._model = C.llama_model_load_from_file(setup["gguf"].encode(), C.llama_model_default_params())
        self._context = C.llama_init_from_model(self._model, self._params(setup))
        if not self._model or not self._context:
            raise SystemExit(f"llama.cpp does not open {setup['gguf']}")
        self._memory = C.llama_get_memory(self._context)
        self._vocabulary = C.llama_vocab_n_tokens(C.llama_model_get_vocab(self._model))
        self._batch = C.llama_batch_init(max(PREFILL, setup["rows"]), 0, 1)

    def _params(self, setup: Message) -> Any:
        params = C.llama_context_default_params()
        params.n_ctx = setup["rows"] * -(-setup["context"] // CELLS) * CELLS
        params.n_seq_max = params.n_outputs_max = setup["rows"]
        params.n_batch = params.n_ubatch = PREFILL
        params.n_threads = params.n_threads_batch = setup["threads"]
        params.kv_unified = False
        return params

    def forget(self) -> None:
        C.llama_memory_clear(self._memory, False)

    def copy(self, source: int, target: int) -> None:
        C.llama_memory_seq_cp(self._memory, source, target, -1, -1)

    def prefill(self, sequence: int, prompt: list[int]) -> np.ndarray:
        """The logits after its last token, [1, V]."""
        for start in range(0, len(prompt), PREFILL):
            part = prompt[start : start + PREFILL]
            positions = range(start, start + len(part))
            self._decode(part, positions, [sequence] * len(part), [start + PREFILL >= len(prompt)])
        return self._logits(1)

    def step(self, rows: list[Row]) -> np.ndarray:
        """The logits after the last token of each row, [B, V]."""
        tokens = [row.tokens[-1] for row in rows]
        self._decode(tokens, [row.length for row in rows], [row.sequence for row in rows], [True] * len(rows))
        for row in rows:
            row.length += 1
        return self._logits(len(rows))

    def _decode(self, tokens: list[int], positions: Any, sequences: list[int], wanted: list[bool]) -> None:
        """`wanted`: of which tokens there are to be logits, or of the last alone if it is one word."""
        batch, count = self._batch, len(tokens)
        batch.n_tokens = count
        wanted = wanted if len(wanted) == count else [False] * (count - 1) + wanted
        for i in range(count):
            batch.token[i], batch.pos[i], batch.logits[i] = tokens[i], positions[i], wanted[i]
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequences[i]
        if (status := C.llama_decode(self._context, batch)) != 0:
            raise SystemExit(f"llama_decode answers {status}")

    def _logits(self, rows: int) -> np.ndarray:
        pointer = C.llama_get_logits(self._context)
        return np.ctypeslib.as_array(pointer, shape=(rows, self._vocabulary))


def sample(model: Model, random: np.random.Generator, job: Message) -> list[Sampled]:
    model.forget()
    rows: list[Row] = []
    for request in job["requests"]:
        first = len(rows)
        logits_1V = model.prefill(first, request["prompt"])
        logits_BV = np.broadcast_to(logits_1V, (request["num_samples"], logits_1V.shape[1]))
        for sequence in range(first, first + request["num_samples"]):
            if sequence > first:
                model.copy(first, sequence)
            rows.append(Row(sequence, len(request["prompt"]), request["max_tokens"]))
        choose(rows[first:], logits_BV, random, job["temperature"])
    while active := [row for row in rows if not row.done]:
        choose(active, model.step(active), random, job["temperature"])
    return [(row.tokens, row.logprobs) for row in rows]


def choose(rows: list[Row], logits_BV: np.ndarray, random: np.random.Generator, temperature: float) -> None:
    """The next token of each row, by the inverse of the cumulated distribution."""
    shifted_BV = logits_BV - logits_BV.max(axis=1, keepdims=True)
    cumulated_BV = np.exp(shifted_BV).cumsum(axis=1, dtype=np.float32)
    total_B = cumulated_BV[:, -1]
    if temperature == 0:
        tokens = logits_BV.argmax(axis=1)
    else:
        assert temperature == 1
        points_B = random.random(len(rows), dtype=np.float32) * total_B
        tokens = [
            int(np.searchsorted(some, point)) for some, point in zip(cumulated_BV, points_B, strict=True)
        ]
    for i, (row, token) in enumerate(zip(rows, tokens, strict=True)):
        row.add(int(token), float(shifted_BV[i, token] - np.log(total_B[i])))


def main() -> None:
    channel = Channel()
    setup = channel.receive()
    assert setup is not None
    model, random = Model(setup), np.random.default_rng(0)
    serve_sampling(channel, lambda job: sample(model, random, job), versions("llama-cpp-python"))


if __name__ == "__main__":
    main()
