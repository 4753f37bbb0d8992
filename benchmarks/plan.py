"""How far `tinker-engine plan` is off: its predictions held against real steps and samples.

    python -m benchmarks.plan          writes benchmarks/results/plan.json (about three minutes on two cores)

A prediction assumes that the machine is otherwise idle, as the best of several tries shows it: on a busy one, what
is measured is slower.
"""

from dataclasses import asdict
from typing import Any

from benchmarks.limits import write

from tinker_engine.commands.plan import comparison, off_by, predict  # isort: skip
from tinker_engine.model import tiny
from tinker_engine.planning.trial import measured
from tinker_engine.planning.workload import Workload

MODELS = (tiny.NAME, "HuggingFaceTB/SmolLM2-135M-Instruct")
WORKLOAD = Workload()


def compared(model: str) -> dict[str, Any]:
    prediction = predict(model, WORKLOAD)
    trial = measured(model, WORKLOAD)
    print(model, *comparison(prediction, trial), sep="\n")
    predicted = asdict(prediction.speed) | {"peak_bytes": prediction.memory.resident}
    real = asdict(trial.speed) | {"peak_bytes": trial.peak_bytes}
    return {
        "predicted": {name: round(value, 2) for name, value in predicted.items()},
        "measured": {name: round(value, 2) for name, value in real.items()},
        "off_by": {name: round(off_by(predicted[name], real[name]), 3) for name in predicted},
        "processor_used_by_others": round(prediction.busy, 2),
        "calibration": asdict(prediction.calibration),
    }


def main() -> None:
    figures = {model: compared(model) for model in MODELS}
    content = {"workload": asdict(WORKLOAD), "figures": figures}
    print(f"written to {write('plan', 'python -m benchmarks.plan', content).name}")


if __name__ == "__main__":
    main()
