"""What learning from preferences reaches on this machine, and how long it takes, through the commands that users have.

    python -m benchmarks.preference_recipes NAME... [--seeds 0 1 2] [--pairs FILE]
                                                          adds to benchmarks/results/preference_recipes.json

`smollm2_hh` takes a file of pairs, such as harmless-base/test.jsonl.gz of Anthropic/hh-rlhf, and its model has to be
pulled before: tinker-engine pull HuggingFaceTB/SmolLM2-135M-Instruct.
"""

from pathlib import Path

from benchmarks.recipe_runs import Figures, Run, measure_all, metrics_of, parser, series

RECIPES = "tinker_cookbook.recipes.preference"

RUNS = {
    "dpo": Run(f"{RECIPES}.dpo.train"),
    "shorter": Run(f"{RECIPES}.shorter.train"),
    "rlhf": Run(f"{RECIPES}.rlhf.rlhf_pipeline"),
    "smollm2_hh": Run(
        "tinker_cookbook.preference.train_cli",
        (
            "model_name=HuggingFaceTB/SmolLM2-135M-Instruct",
            "max_length=128",
            "test_size=400",  # of which about a third is short enough
            "batch_size=8",
            "max_steps=60",
            "eval_every=60",
            "num_samples=0",
        ),
    ),
}
METRICS: dict[str, dict[str, tuple[str, ...]]] = {
    "dpo": {"": ("style/preferred", "style/true", "test/accuracy", "test/margin")},
    "shorter": {"": ("env/all/ac_tokens_per_turn",)},
    "rlhf": {"sft": ("test/nll",), "rm": ("judge/accuracy",), "rl": ("judge/win_rate", "rule/win_rate")},
    "smollm2_hh": {"": ("test/accuracy", "test/margin", "test/dpo_loss", "test/nll")},
}
"""Of each run, by the folder they are in, beneath the run's."""


def main() -> None:
    arguments = parser(__doc__, RUNS)
    arguments.add_argument("--pairs", help="of smollm2_hh")
    chosen = arguments.parse_args()
    measure_all(
        "preference_recipes",
        RUNS,
        chosen,
        summary,
        more=lambda name: [f"pairs={chosen.pairs}"] if name == "smollm2_hh" else [],
    )


def summary(name: str, folder: Path) -> Figures:
    return {
        metric: series(metrics_of(folder / part), metric)
        for part, metrics in METRICS[name].items()
        for metric in metrics
    }


if __name__ == "__main__":
    main()
