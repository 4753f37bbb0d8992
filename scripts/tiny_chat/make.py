"""Make the tiny model from nothing: its text, its tokenizer, its weights, its figures.

    python -m scripts.tiny_chat.make            # into build/tiny_chat; about three quarters of an hour on two cores
    python -m scripts.tiny_chat.make --install  # and then put it into the engine

Stopped runs go on where their last checkpoint was, to the same weights. The first part of training reads careful
text; the last part reads text whose writers slip now and then, so that the model, sampled at temperature 1, is right
only some of the time. Training it further has something to show then.
"""

import argparse
import dataclasses
import hashlib
import json
import math
import os
import random
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tqdm import tqdm

from benchmarks.limits import RESULTS, machine
from scripts.tiny_chat.chatml import END, END_OF_TEXT, SPECIAL_TOKENS, TEMPLATE, with_tools
from scripts.tiny_chat.evaluate import Talker, measure
from scripts.tiny_chat.network import Llama, Shape, tune_cpu, weighted_loss
from scripts.tiny_chat.optimizer import Optimizer
from scripts.tiny_chat.text import (
    CONTEXT,
    FIRST_SHARES,
    LATE_SHARES,
    MISTAKES,
    Batch,
    Document,
    Source,
    batches,
    encoded,
)
from scripts.tiny_chat.tokenizer import VOCABULARY, train_tokenizer
from tinker_cookbook.tasks import TASKS, get_task, solution
from tinker_engine.model import tiny
from tinker_engine.model.load import load_model

TOKENIZER_TEXTS = 20_000
HELD_OUT = Source(seed=10_000, split="test")


@dataclass(frozen=True)
class Plan:
    """Everything that decides the weights."""

    seed: int = 0
    steps: int = 5000
    batch_size: int = 2048  # tokens
    shard: int = 4096  # documents from which batches are filled together
    matrix_rate: float = 0.003  # learning rate of the matrices inside the layers (Muon)
    other_rate: float = 0.005  # of the embedding and the norms (AdamW)
    weight_decay: float = 0.1  # of the matrices
    rising: int = 50  # steps in which the learning rates rise
    falling: float = 0.6  # share of the steps, at the end, in which they fall to zero
    copying_until: float = 0.07  # share of the steps before which the text is mostly copying
    careless_from: float = 0.8  # share of the steps after which writers slip
    late_prompt_weight: float = 0.05  # from then on, of tokens the assistant does not write; nothing before
    shape: Shape = dataclasses.field(
        default_factory=lambda: Shape(vocab_size=VOCABULARY, layers=5, max_context=CONTEXT)
    )


class Log:
    """Lines of JSON in a file; a resumed run cuts what was written after its checkpoint, and the last words."""

    def __init__(self, path: Path):
        self.path = path

    def cut_after(self, step: int) -> None:
        if self.path.exists():
            lines = self.path.read_text().splitlines(keepends=True)
            kept = [line for line in lines if json.loads(line).get("step", math.inf) <= step]
            self.path.write_text("".join(kept))

    def add(self, **content: Any) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(content) + "\n")


class Training:
    """Model, optimizer and place in the text; saved and restored as one."""

    def __init__(self, plan: Plan, tokenizer: tokenizers.Tokenizer):
        self.plan = plan
        self.tokenizer = tokenizer
        torch.manual_seed(plan.seed)
        self.network = Llama(plan.shape)
        self.optimizer = Optimizer(
            self.network,
            plan.steps,
            matrix_lr=plan.matrix_rate,
            other_lr=plan.other_rate,
            weight_decay=plan.weight_decay,
            warmup_steps=plan.rising,
            decay_share=plan.falling,
        )
        self.step = 0
        self.shard = 0
        self.shard_step = 0  # the step at which it began
        self.used = 0  # batches of it
        self.tokens = 0
        self.seconds = 0.0  # over all the runs it took

    def save(self, path: Path) -> None:
        state = {
            "model": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "place": (self.step, self.shard, self.shard_step, self.used, self.tokens, self.seconds),
            "plan": dataclasses.asdict(self.plan),
        }
        partial = path.with_suffix(".partial")
        torch.save(state, partial)
        os.replace(partial, path)

    def restore(self, path: Path) -> None:
        state = torch.load(path, weights_only=True)
        if state["plan"] != dataclasses.asdict(self.plan):
            raise SystemExit(f"{path} is of another plan; remove its folder, or give --out another one")
        self.network.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.shard, self.shard_step, self.used, self.tokens, self.seconds = state["place"]

    def batches(self) -> Iterator[Batch]:
        """From the present place on, without end."""
        plan = self.plan
        while True:
            found = batches(
                self.tokenizer, self.source(), self.shard, size=plan.batch_size, documents=plan.shard
            )
            for batch in found[self.used :]:
                self.used += 1
                yield batch
            self.shard, self.shard_step, self.used = self.shard + 1, self.step, 0

    def source(self) -> Source:
        """What the present shard is made of."""
        progress = self.shard_step / self.plan.steps
        if progress < self.plan.copying_until:
            return Source(self.plan.seed, shares=FIRST_SHARES)
        if progress < self.plan.careless_from:
            return Source(self.plan.seed)
        return Source(
            self.plan.seed, shares=LATE_SHARES, careless=True, prompt_weight=self.plan.late_prompt_weight
        )

    def learn(self, batch: Batch) -> float:
        loss = loss_of(self.network, batch)
        loss.backward()
        self.optimizer.step()
        self.step += 1
        self.tokens += batch.tokens_BT.size
        return loss.item()


def loss_of(network: Llama, batch: Batch) -> torch.Tensor:
    tokens, targets, weights = map(torch.from_numpy, (batch.tokens_BT, batch.targets_BT, batch.weights_BT))
    return weighted_loss(network, tokens, targets, weights)


@torch.inference_mode()
def held_out_losses(training: Training, *, count: int = 24) -> dict[str, float]:
    """Nats per token that the assistant writes, on careful text of the test split, by task."""
    losses: dict[str, float] = {}
    for name in TASKS:
        total = tokens = 0.0
        for number, problem in enumerate(get_task(name).problems("test", count)):
            messages = [*problem.prompt, *solution(problem, random.Random(number))]
            one = encoded(training.tokenizer, with_tools(messages, problem.tools))
            own_T = torch.from_numpy(one.weights == 1)[1:]
            total += float(token_losses(training.network, one) @ own_T.float())
            tokens += float(own_T.sum())
        losses[name] = round(total / tokens, 4)
    return losses


def token_losses(network: Llama, one: Document) -> torch.Tensor:
    tokens_T = torch.from_numpy(one.tokens)
    logits_TV = network.logits(network(tokens_T[None, :-1]))[0]
    return F.cross_entropy(logits_TV, tokens_T[1:], reduction="none")


@torch.inference_mode()
def loss_by_position(
    training: Training, *, documents: int = 64, width: int = CONTEXT // 4
) -> dict[str, float]:
    """The same on long conversations, by the token's place in the context."""
    totals, counts = torch.zeros(CONTEXT), torch.zeros(CONTEXT)
    for number in range(documents):
        one = HELD_OUT.document(training.tokenizer, number, chained=1.0)
        own_T = torch.from_numpy(one.weights == 1)[1:]
        totals[: len(own_T)] += token_losses(training.network, one) * own_T
        counts[: len(own_T)] += own_T
    starts = range(0, CONTEXT, width)
    found = {f"{a}–{a + width}": totals[a : a + width].sum() / counts[a : a + width].sum() for a in starts}
    return {place: round(loss.item(), 4) for place, loss in found.items()}


def train(training: Training, folder: Path, *, log_every: int = 20, save_every: int = 200) -> None:
    checkpoint, log = folder / "checkpoint.pt", Log(folder / "training.jsonl")
    if checkpoint.exists():
        training.restore(checkpoint)
        print(f"going on from step {training.step}", file=sys.stderr)
    log.cut_after(training.step)
    plan = training.plan
    if training.step == 0:
        log.add(step=0, plan=dataclasses.asdict(plan), **machine())
    bar = tqdm(total=plan.steps, initial=training.step, desc="training", unit="step", mininterval=1)
    stream = training.batches()
    recent: list[float] = []
    clock = time.perf_counter()
    while training.step < plan.steps:
        recent.append(training.learn(next(stream)))
        bar.update()
        last = training.step == plan.steps
        if training.step % log_every == 0 or last:
            now = time.perf_counter()
            training.seconds, clock = training.seconds + now - clock, now
            line: dict[str, Any] = {"loss": round(sum(recent) / len(recent), 4), "tokens": training.tokens}
            line["tokens_per_second"] = round(training.tokens / training.seconds)
            bar.set_postfix(line)
            if training.step % save_every == 0 or last:
                line["held_out"] = held_out_losses(training)
            log.add(step=training.step, **line, seconds=round(training.seconds, 1))
            recent.clear()
        if training.step % save_every == 0 or last:
            training.save(checkpoint)
    bar.close()


def export(training: Training, folder: Path) -> str:
    """A Hugging Face model folder in half precision; the SHA-256 of its weights."""
    folder.mkdir(exist_ok=True)
    weights = {
        name: tensor.detach().half().contiguous() for name, tensor in training.network.state_dict().items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    training.tokenizer.save(str(folder / "tokenizer.json"))
    end, turn = (training.tokenizer.token_to_id(token) for token in (END_OF_TEXT, END))
    special = {"eos_token_id": turn, "pad_token_id": end, "bos_token_id": None}
    _write(folder / "config.json", training.plan.shape.hf_config() | special)
    _write(folder / "generation_config.json", special | {"eos_token_id": [turn, end]})
    _write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END,
            "pad_token": END_OF_TEXT,
            "additional_special_tokens": list(SPECIAL_TOKENS[1:]),
            "model_max_length": CONTEXT,
            "clean_up_tokenization_spaces": False,
        },
    )
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def learned_tokenizer(plan: Plan, folder: Path) -> tokenizers.Tokenizer:
    """Learned anew each time: it takes seconds, and follows from the plan."""
    tokenizer = train_tokenizer(Source(plan.seed).texts(TOKENIZER_TEXTS))
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.tiny_chat.make", description="Make the tiny model."
    )
    parser.add_argument("--out", type=Path, default=Path("build/tiny_chat"), help="folder of the run")
    parser.add_argument("--seed", type=int, default=Plan.seed)
    parser.add_argument("--steps", type=int, default=Plan.steps)
    parser.add_argument("--count", type=int, default=500, help="problems of each task for the figures")
    parser.add_argument(
        "--install", action="store_true", help="put the model into the engine, its figures into results"
    )
    arguments = parser.parse_args()
    folder: Path = arguments.out
    folder.mkdir(parents=True, exist_ok=True)
    tune_cpu(torch.get_num_threads())

    plan = Plan(seed=arguments.seed, steps=arguments.steps)
    training = Training(plan, learned_tokenizer(plan, folder))
    train(training, folder)
    digest = export(training, folder / "model")
    figures = measure(Talker.of(load_model(str(folder / "model"))), count=arguments.count)
    log = Log(folder / "training.jsonl")
    parameters = sum(p.numel() for p in training.network.parameters())
    log.add(weights_sha256=digest, parameters=parameters, mistakes=dict(MISTAKES))
    positions = loss_by_position(training)
    _write(
        folder / "figures.json",
        {"weights_sha256": digest, "tasks": figures, "held_out_loss_by_position": positions},
    )
    if arguments.install:
        shutil.copytree(folder / "model", tiny.FOLDER, dirs_exist_ok=True)
        shutil.copy(folder / "training.jsonl", RESULTS / "tiny_chat_training.jsonl")
        shutil.copy(folder / "figures.json", RESULTS / "tiny_chat_figures.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
