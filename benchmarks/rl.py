"""What reinforcement learning reaches on this machine, and how long it takes, through the commands that users have.

    python -m benchmarks.rl NAME... [--seeds 0 1 2]       adds to benchmarks/results/rl.json, the table beside
                                                          it (rl.md) and a plot each as PNG

The model of a name that begins with smollm2 has to be pulled before: tinker-engine pull
HuggingFaceTB/SmolLM2-135M-Instruct. Those of reasoning-gym need that package: pip install reasoning-gym.
"""

from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.limits import RESULTS
from benchmarks.recipe_runs import Figures, Rows, Run, measure_all, metrics_of, parser, series
from tinker_cookbook.utils.curves import save_comparison_png

REWARD = "env/all/reward/total"
FORM = "env/all/format"
CORRECT = "env/all/correct"
# What is right is counted here, and not the reward, which has part of a point for something else.
COUNTED_BY_CORRECT = {"smollm2_multiplication", "smollm2_two_digit_addition"}
LOSSES = ("importance_sampling", "cispo", "dro", "gspo")
LOSS_RUNS = {"tiny_arithmetic": "ppo"} | {f"tiny_arithmetic_{loss}": loss for loss in LOSSES}
SMOLLM2 = ["model_name=HuggingFaceTB/SmolLM2-135M-Instruct", "batch_size=16", "learning_rate=1e-3"]
TWO_DIGITS = [
    "env_options=smallest=10,largest=99,restate=True,begin_answer=True,partial_credit=0.5",
    "max_tokens=6",
    "batch_size=96",
    "group_size=4",
    "learning_rate=5e-4",
    "lr_schedule=cosine",
    "num_substeps=4",
    "max_steps=30",
    "eval_every=15",
    "test_size=100",
]
GYM = ["eval_every=8", "max_steps=16"]
ONE_DIGIT_NUMBERS = "extraction=last_number,config.min_digits=1,config.max_digits=1"
TWO_TERMS = "config.min_terms=2,config.max_terms=2"
REINFORCE = ["advantage=reward", "remove_constant_reward_groups=False", "learning_rate=2e-3", "eval_every=16"]


def one_digit(max_steps: int, learning_rate: float, max_tokens: int, *more_options: str) -> list[str]:
    options = ["largest=9", "include_fewshot=False", "system_prompt=Answer with an equation.", *more_options]
    return [
        SMOLLM2[0],
        f"env_options={','.join(options)}",
        "batch_size=24",
        "group_size=4",
        f"learning_rate={learning_rate}",
        "lr_schedule=cosine",
        f"max_tokens={max_tokens}",
        "test_size=60",
        "eval_temperature=0.0",
        f"max_steps={max_steps}",
        f"eval_every={max_steps}",
    ]


ARGUMENTS: dict[str, list[str]] = {
    "tiny_arithmetic": [],
    "tiny_arithmetic_sync": [*REINFORCE, "max_steps=32"],
    "tiny_arithmetic_streaming": [*REINFORCE, "max_steps=32", "num_minibatches=2"],
    "tiny_arithmetic_async": [*REINFORCE, "max_steps=64", "batch_size=16", "max_steps_off_policy=2"],
    **{f"tiny_arithmetic_{loss}": [f"loss_fn={loss}"] for loss in LOSSES},
    "tiny_formats": [
        "env=formats",
        "env_options=task_options.forms=upper+brackets+json",
        "learning_rate=2e-3",
        "max_steps=50",
    ],
    "tiny_sort": [
        "env=sort",
        "env_options=task_options.kinds=letters,task_options.longest=3",
        "max_steps=64",
        "eval_every=32",
    ],
    "smollm2_addition": ["env=addition", *one_digit(10, 1e-3, 12)],
    "smollm2_multiplication": [
        "env=multiplication",
        *one_digit(12, 8e-4, 10, "equation=True", "format_coef=0.3"),
        "num_substeps=2",
    ],
    "smollm2_two_digit_addition": [SMOLLM2[0], "env=addition", *TWO_DIGITS],
    "smollm2_chain_sum": [
        *SMOLLM2,
        "env=reasoning_gym/chain_sum",
        f"env_options={ONE_DIGIT_NUMBERS},config.min_terms=2,config.max_terms=3",
        *GYM,
        "test_size=60",
        "max_tokens=12",
    ],
    "smollm2_products": [
        *SMOLLM2,
        "env=reasoning_gym/products",
        f"env_options={ONE_DIGIT_NUMBERS},{TWO_TERMS}",
        *GYM,
        "test_size=20",  # of the 81 there are
        "max_tokens=12",
    ],
    "smollm2_syllogism": [*SMOLLM2, "env=reasoning_gym/syllogism", *GYM, "test_size=60", "max_tokens=8"],
}
"""Of `python -m tinker_cookbook.rl.train_cli`; without any it is as it comes."""
RUNS = {
    name: Run("tinker_cookbook.rl.train_cli", ("save_every=0", *arguments))
    for name, arguments in ARGUMENTS.items()
}


def main() -> None:
    measure_all("rl", RUNS, parser(__doc__, RUNS).parse_args(), summary, after=show)


def show(figures: Figures) -> None:
    (RESULTS / "rl.md").write_text(table(figures) + "\n", encoding="utf-8")
    draw(figures)


def table(figures: Figures) -> str:
    """Of a run with several seeds, the figures of each in turn: the reward, or the share that is right."""
    head = "| run | seeds | sampled, first step | last three | held-out before | after | seconds |"
    return "\n".join([head, "|---" * 7 + "|", *(_line(name, figures[name]["seeds"]) for name in figures)])


def _line(name: str, by_seed: Figures) -> str:
    keys = ("reward_of_first_step", "reward_of_last_steps", "held_out_before", "held_out_after", "seconds")
    cells = [", ".join(str(result.get(key, "")) for result in by_seed.values()) for key in keys]
    return f"| {' | '.join([name, ', '.join(by_seed), *cells])} |"


def draw(figures: Figures) -> None:
    """A plot for each run with its seeds, and one with the losses side by side. Old results may have no curves."""
    measured = {name: figures[name]["seeds"] for name in RUNS if name in figures}
    curves = {
        name: {f"seed {seed}": curve(result, counted(name)) for seed, result in seeds.items()}
        for name, seeds in measured.items()
        if all("rewards" in result for result in seeds.values())
    }
    for name, by_seed in curves.items():
        if name not in LOSS_RUNS or name == "tiny_arithmetic":
            save_comparison_png(by_seed, RESULTS / f"rl_{name}.png", keys=[counted(name)], title=name)
    losses = {
        loss: curves[name]["seed 0"] for name, loss in LOSS_RUNS.items() if "seed 0" in curves.get(name, {})
    }
    if len(losses) > 1:
        save_comparison_png(losses, RESULTS / "rl_losses.png", keys=[REWARD], title="losses, seed 0")


def curve(result: Figures, metric: str) -> list[dict[str, Any]]:
    return [{"step": step, metric: value} for step, value in enumerate(result["rewards"])]


def counted(name: str) -> str:
    return CORRECT if name in COUNTED_BY_CORRECT else REWARD


def summary(name: str, folder: Path) -> Figures:
    rows = metrics_of(folder)
    sampled = list(series(rows, counted(name), 3).values())
    gaps = series(rows, "optim/logprob_gap_max", 9)
    return {
        "steps": len(sampled),
        "reward_of_first_step": sampled[0],
        "reward_of_last_steps": round(fmean(sampled[-3:]), 3),
        **held_out(rows, counted(name)),
        **({"largest_logprob_gap": max(gaps.values())} if gaps else {}),
        "rewards": sampled,
    }


def held_out(rows: Rows, metric: str) -> Figures:
    tested, formed = series(rows, f"test/{metric}", 3), series(rows, f"test/{FORM}", 3)
    return {
        "held_out_before": tested[min(tested)],
        "held_out_after": tested[max(tested)],
        "held_out_in_form_after": formed[max(formed)],
        "held_out": tested,
    }


if __name__ == "__main__":
    main()
