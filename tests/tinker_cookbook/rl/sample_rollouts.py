"""Rollouts such as a small model makes, and a report of them: for tests, and to be looked at.

python -m tests.tinker_cookbook.rl.sample_rollouts FILE.html
"""

import random
import sys
from collections.abc import Sequence

import tinker

from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.rl.report import ReportGroup, log_groups
from tinker_cookbook.rl.types import Metrics, RolloutError, Trajectory, TrajectoryGroup, Transition
from tinker_cookbook.tokenizer_utils import Tokenizer, get_tokenizer
from tinker_cookbook.utils import logtree
from tinker_engine.model import tiny

SUM_PROMPT = (
    "<|im_start|>system\nThink first.<|im_end|>\n<|im_start|>user\nWhat is 27 + 15?<|im_end|>\n"
    "<|im_start|>assistant\n"
)
GUESS_PROMPT = (
    "<|im_start|>user\nI think of a number from 1 to 20. Guess it.<|im_end|>\n<|im_start|>assistant\n"
)


def transition(
    tokenizer: Tokenizer, ob: list[int], text: str, reward: float, done: bool, rng: random.Random, **more
) -> Transition:
    tokens = tokenizer.encode(text)
    logprobs = [-rng.expovariate(2.0) for _ in tokens]
    return Transition(
        tinker.ModelInput.from_ints(ob), TokensWithLogprobs(tokens, logprobs), reward, done, **more
    )


def data_of(trajectory: Trajectory, advantage: float, penalty: float = 0.0) -> list[tinker.Datum]:
    """As training data is made of it, for a trajectory whose observations all go on from each other."""
    last = trajectory.transitions[-1]
    sequence = [*last.ob.to_ints(), *last.ac.tokens]
    mask, logprobs, advantages = ([0.0] * len(sequence) for _ in range(3))
    for transition in trajectory.transitions:
        start, kept = transition.ob.length, float(not transition.metrics.get("parse_error_masked"))
        for place, logprob in enumerate(transition.ac.logprobs, start=start):
            mask[place], logprobs[place] = kept, logprob
            advantages[place] = kept * (advantage + penalty * logprob)
    inputs = {"logprobs": logprobs, "advantages": advantages, "mask": mask}
    tensors = {
        name: tinker.TensorData(data=values[1:], dtype="float32", shape=[len(values) - 1])
        for name, values in inputs.items()
    }
    targets = tinker.TensorData(data=sequence[1:], dtype="int64", shape=[len(sequence) - 1])
    return [
        tinker.Datum(
            model_input=tinker.ModelInput.from_ints(sequence[:-1]),
            loss_fn_inputs={"target_tokens": targets, **tensors},
        )
    ]


def sums(tokenizer: Tokenizer, answers: Sequence[str], rng: random.Random) -> TrajectoryGroup:
    prompt = tokenizer.encode(SUM_PROMPT)
    trajectories_G = []
    for answer in answers:
        right, form = float(answer.endswith("42<|im_end|>")), float("</think>" in answer)
        logs = {"answer": answer.split(">")[-2].removesuffix("<|im_end|")[-20:] or "none", "right answer": 42}
        metrics = {"correct": right, "format": form}
        step = transition(
            tokenizer, prompt, answer, right - 0.1 * (1 - form), True, rng, metrics=metrics, logs=logs
        )
        stop = "completed" if answer.endswith("<|im_end|>") else "max_tokens"
        trajectories_G.append(Trajectory([step], tinker.ModelInput.empty(), stop))
    return TrajectoryGroup(trajectories_G, [0.0] * len(answers), [{} for _ in answers])


def guessing(tokenizer: Tokenizer, games: Sequence[Sequence[int]], rng: random.Random) -> TrajectoryGroup:
    trajectories_G = []
    for guesses in games:
        known, transitions = tokenizer.encode(GUESS_PROMPT), []
        for turn, guess in enumerate(guesses):
            won, done = guess == 13, turn == len(guesses) - 1
            metrics = {"won": float(won)} if done else {"stop/completed": 1.0}
            step = transition(
                tokenizer, known, f"Is it {guess}?<|im_end|>", float(won), done, rng, metrics=metrics
            )
            reply = "Yes, you win." if won else "It is higher." if guess < 13 else "It is lower."
            text = f"\n<|im_start|>user\n{reply}<|im_end|>\n<|im_start|>assistant\n"
            known = known + list(step.ac.tokens) + tokenizer.encode(text)
            transitions.append(step)
        trajectories_G.append(Trajectory(transitions, tinker.ModelInput.from_ints(known), "completed"))
    finals = [-0.05 * len(guesses) for guesses in games]
    metrics_G: list[Metrics] = [{"guesses": len(guesses)} for guesses in games]
    return TrajectoryGroup(
        trajectories_G, finals, metrics_G, [RolloutError("TimeoutError", "no answer in 30 s")]
    )


def trained(
    group: TrajectoryGroup, tags: list[str], step: int | None = 11, penalty: float = 0.0
) -> ReportGroup:
    rewards_G = group.get_total_rewards()
    mean = sum(rewards_G) / len(rewards_G)
    data_G = [
        data_of(trajectory, reward - mean, penalty)
        for trajectory, reward in zip(group.trajectories_G, rewards_G, strict=True)
    ]
    return ReportGroup(group, tags, data_G, step)


ANSWERS = [
    "<think>7+5=12, 2+1+1=4</think>42<|im_end|>",
    "<think>7+5=12, 2+1=3</think>32<|im_end|>",
    "<think>7+5=13, 2+1+1=4</think>43<|im_end|>",
    "42<|im_end|>",
    "I do not know <b>that</b> & never will, naïve as I am: 4 € or 日本 🙂<|im_end|>",
    "<think>7+5=12, 2+1+1=4, " + "and again 7+5=12, 2+1+1=4, " * 60,
]


def groups(tokenizer: Tokenizer) -> list[ReportGroup]:
    rng = random.Random(0)
    return [
        trained(sums(tokenizer, ANSWERS, rng), ["arithmetic", "think"]),
        trained(
            guessing(tokenizer, [[10, 15, 12, 13], [10, 5, 3, 2], [7, 13], *[[1, 2, 3]] * 9], rng),
            ["guess_number"],
            penalty=0.2,
        ),
        ReportGroup(sums(tokenizer, ["42<|im_end|>"] * 3, rng), ["arithmetic"], None, 11),
    ]


if __name__ == "__main__":
    tiny_tokenizer = get_tokenizer(tiny.NAME)
    with logtree.init_trace("Iteration 12", sys.argv[1]), logtree.scope_header("RL iteration 12"):
        log_groups(groups(tiny_tokenizer), tiny_tokenizer)
