"""How well a model does the cookbook's tasks, sampled by the engine as any user would."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tqdm import tqdm

from scripts.tiny_chat.chatml import END, prompt_text
from tinker_cookbook.tasks import TASKS, Problem, Split, get_task
from tinker_cookbook.tasks.arithmetic import Sum
from tinker_cookbook.tasks.chat import Question
from tinker_cookbook.tasks.formats import Counted, Formatted
from tinker_cookbook.tasks.lists import Compared, Rearranged, Respelled
from tinker_cookbook.tasks.styles import style_of
from tinker_cookbook.tasks.tictactoe import Position
from tinker_cookbook.tasks.tools import Calculated, LookedUp
from tinker_engine.model.decoder import Decoder
from tinker_engine.model.load import LoadedModel
from tinker_engine.model.lora import Adapter
from tinker_engine.model.tokenizer import Tokenizer
from tinker_engine.sampling.sampler import Sampler
from tinker_engine.sampling.types import SampleRequest, SamplingParams

MAX_REPLY = 64  # tokens; the longest right reply has about half
LONG_GAMES = {"ask_questions": 4}  # measured on so many times fewer problems: a game takes up to twenty turns


@dataclass
class Talker:
    """A sampler that takes and gives text."""

    sampler: Sampler
    tokenizer: Tokenizer

    @classmethod
    def of(cls, model: LoadedModel) -> "Talker":
        sampler = Sampler(Decoder(model.spec, model.weights), model.tokenizer, model.eos_token_ids)
        return cls(sampler, model.tokenizer)

    def has_room(self, prompt: str) -> bool:
        """Whether a reply to this prompt fits into the model's context."""
        return len(self.tokenizer.encode(prompt)) + MAX_REPLY <= self.sampler.decoder.spec.max_context

    def reply(
        self, prompts: Sequence[str], *, temperature: float, seed: int, adapter: Adapter | None = None
    ) -> list[str]:
        requests = [
            SampleRequest(
                self.tokenizer.encode(prompt),
                SamplingParams(max_tokens=MAX_REPLY, seed=seed + number, temperature=temperature),
                adapter=adapter,
            )
            for number, prompt in enumerate(prompts)
        ]
        results = self.sampler.sample(requests)
        return [self.tokenizer.decode(r.sequences[0].tokens).removesuffix(END) for r in results]


def play(talker: Talker, problems: Sequence[Problem], *, temperature: float, seed: int) -> list[list[str]]:
    """Every problem to its end or to the end of the context, all of them side by side; the replies to each."""
    replies: list[list[str]] = [[] for _ in problems]
    going = {i: list(problem.prompt) for i, problem in enumerate(problems)}
    while going:
        prompts = [prompt_text(messages, problems[i].tools) for i, messages in going.items()]
        seed += len(problems)
        said = talker.reply(prompts, temperature=temperature, seed=seed)
        for i, reply in zip(list(going), said, strict=True):
            replies[i].append(reply)
            heard = problems[i].respond(replies[i])
            if heard is not None:
                going[i] += [{"role": "assistant", "content": reply}, heard]
            if heard is None or not talker.has_room(prompt_text(going[i], problems[i].tools)):
                del going[i]
    return replies


def share(hits: Sequence[bool]) -> dict[str, float]:
    """Mean and its standard error."""
    mean = sum(hits) / len(hits)
    return {"mean": round(mean, 3), "se": round(math.sqrt(mean * (1 - mean) / len(hits)), 3), "n": len(hits)}


def kind(problem: Problem) -> str:
    """What to tell apart within a task."""
    match problem:
        case Sum():
            digits = "one digit" if max(problem.a, problem.b) < 10 else "two digits"
            return f"{digits} {problem.op}" + (", thinking" if problem.think else "")
        case Question():
            return problem.style or "any style"
        case Formatted():
            return problem.form
        case Counted():
            return f"{problem.count} words"
        case Rearranged():
            return "list"
        case Respelled():
            return "word"
        case Compared():
            return problem.rule
        case Position():
            return "moves listed" if problem.list_moves else "moves not listed"
        case Calculated():
            return "calculator"
        case LookedUp():
            return "lookup"
        case _:
            return ""


def measure_task(
    talker: Talker, name: str, *, split: Split, count: int, temperature: float, seed: int
) -> dict[str, object]:
    problems = list(get_task(name).problems(split, count, seed=seed))
    replies = play(talker, problems, temperature=temperature, seed=seed)
    right = [p.check(r) for p, r in zip(problems, replies, strict=True)]
    formed = [p.well_formed(r) for p, r in zip(problems, replies, strict=True)]
    figures: dict[str, object] = {"right": share(right), "well_formed": share(formed)}
    kinds = sorted({kind(p) for p in problems})
    if len(kinds) > 1:
        of_kind = {k: [ok for p, ok in zip(problems, right, strict=True) if kind(p) == k] for k in kinds}
        figures["right_by_kind"] = {k: share(hits) for k, hits in of_kind.items()}
    if name == "chat":
        free = [style_of(r[-1]) for p, r in zip(problems, replies, strict=True) if kind(p) == "any style"]
        figures["styles_when_free"] = {
            s or "none": round(free.count(s) / len(free), 3) for s in sorted(set(free), key=str)
        }
    return figures


def measure(
    talker: Talker, *, count: int = 500, seed: int = 1, quiet: bool = False
) -> dict[str, dict[str, object]]:
    """Every task: held-out problems at temperature 1 and greedily, and problems of the train split."""
    settings: list[tuple[str, Split, float]] = [
        ("test, temperature 1", "test", 1.0),
        ("test, greedy", "test", 0.0),
        ("train, temperature 1", "train", 1.0),
    ]
    figures: dict[str, dict[str, object]] = {}
    for name in tqdm(TASKS, desc="measuring", unit="task", disable=quiet):
        figures[name] = {
            label: measure_task(
                talker,
                name,
                split=split,
                count=count // LONG_GAMES.get(name, 1),
                temperature=temperature,
                seed=seed,
            )
            for label, split, temperature in settings
        }
    return figures
