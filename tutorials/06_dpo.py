"""DPO: learning from pairs of answers, of which one is better.

python tutorials/06_dpo.py
"""

# %% Pairs.
# A prompt, the answer that is preferred and the one that is not. Here a polite answer is better than a terse one, and
# both are true, so that manners are all there is to learn.
import json
import random
import tempfile
from pathlib import Path

from tinker_cookbook import model_info
from tinker_cookbook.preference import train_dpo
from tinker_cookbook.preference.dpo_datasets import DPODatasetBuilderFromComparisons
from tinker_cookbook.preference.pair_files import PairFileBuilder
from tinker_cookbook.recipes.knights import all_questions
from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig
from tinker_cookbook.tasks.styles import STYLES

rng = random.Random(0)
folder = Path(tempfile.mkdtemp(prefix="dpo-"))
path = folder / "pairs.jsonl"
rows = [
    {
        "prompt": question.asked,
        "chosen": STYLES["polite"].say(question.fact, rng),
        "rejected": STYLES["plain"].say(question.fact, rng),
    }
    for question in all_questions("train")
]
path.write_text("".join(json.dumps(row) + "\n" for row in rows))
print(json.dumps(rows[0], indent=2))

# %% Two builders, one inside the other.
# One reads pairs from a file and holds some out, the other makes datums of them: chosen, rejected, chosen, ...
MODEL = "tinker-engine/tiny-chat"
renderer_name = model_info.get_recommended_renderer_name(MODEL)
builder = DPODatasetBuilderFromComparisons(
    comparison_builder=PairFileBuilder(path=str(path), test_size=32),
    common_config=ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer=MODEL, renderer_name=renderer_name, max_length=256, batch_size=16
    ),
)

# %% The run.
# The loss is -log σ(β · margin). The margin says how much more likely than the reference the policy finds the chosen
# answer, less the same of the rejected one. The reference is what the run started from, so the margin begins at 0 and
# the loss at log 2 = 0.693.
train_dpo.main(
    train_dpo.Config(
        log_path=str(folder / "run"),
        model_name=MODEL,
        recipe_name="first_dpo",
        renderer_name=renderer_name,
        dataset_builder=builder,
        loss="dpo",
        dpo_beta=0.1,
        learning_rate=1e-3,
        max_steps=10,
        eval_every=10,
        save_every=0,
    )
)

# %% What happened.
metrics = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
for row in metrics:
    if "dpo_loss" in row:
        print(f"step {row['step']}  loss {row['dpo_loss']:.3f}  margin {row['margin']:.3f}")
held_out = [row for row in metrics if "test/accuracy" in row]
first, last = held_out[0], held_out[-1]
print(
    f"held-out margin {first['test/margin']:.3f} → {last['test/margin']:.3f}, accuracy {last['test/accuracy']:.0%}"
)

assert abs(metrics[0]["dpo_loss"] - 0.693) < 0.01, "nothing is told apart yet"
assert last["test/accuracy"] > 0.9
assert last["test/margin"] > 0.2
