"""First supervised fine-tuning: a file of conversations, a config, and the trainer.

python tutorials/03_first_sft.py
"""

# %% Data.
# A file of conversations, one on each line. These are questions about the world that the tiny model knows, answered in
# a way that it does not: as a knight would.
import asyncio
import json
import tempfile
from pathlib import Path

from tinker_cookbook import model_info
from tinker_cookbook.recipes.knights import knight_conversations
from tinker_cookbook.supervised import train
from tinker_cookbook.supervised.data import FromConversationFileBuilder
from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig

folder = Path(tempfile.mkdtemp(prefix="first-sft-"))
data = folder / "knight.jsonl"
rows = [{"messages": conversation} for conversation in knight_conversations("train", tellings=1)]
data.write_text("".join(json.dumps(row) + "\n" for row in rows))
print(f"{len(rows)} conversations in {data}, such as\n{json.dumps(rows[0], indent=2)}")

# %% The data set.
# A builder is a config that makes the data when the trainer asks for it. It checks every row first, and names file and
# line of one that does not fit. `test_size` conversations are held out.
MODEL = "tinker-engine/tiny-chat"
renderer_name = model_info.get_recommended_renderer_name(MODEL)
builder = FromConversationFileBuilder(
    file_path=str(data),
    test_size=32,
    common_config=ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer=MODEL, renderer_name=renderer_name, max_length=256, batch_size=16
    ),
)

# %% The run.
config = train.Config(
    log_path=str(folder / "run"),
    model_name=MODEL,
    recipe_name="first_sft",
    renderer_name=renderer_name,
    dataset_builder=builder,
    learning_rate=5e-3,
    max_steps=12,
    eval_every=6,
    save_every=0,  # only the final checkpoint
)
asyncio.run(train.main(config))

# %% What it left behind.
# One row of metrics for each step, and one for the evaluation at the end.
metrics = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
for row in metrics:
    loss = f"loss {row['train_mean_nll']:.3f}" if "train_mean_nll" in row else ""
    held_out = f"held-out loss {row['test/nll']:.3f}" if "test/nll" in row else ""
    print(f"step {row['step']:2}  {loss:12}  {held_out}")
checkpoint = json.loads((folder / "run" / "checkpoints.jsonl").read_text().splitlines()[-1])
print("weights to sample from:", checkpoint["sampler_path"])

held_out_losses = [row["test/nll"] for row in metrics if "test/nll" in row]
assert held_out_losses[-1] < 0.2 * held_out_losses[0], "it learned what it was not shown, too"

# The same without Python:
#   python -m tinker_cookbook.supervised.train_cli dataset=knight.jsonl
