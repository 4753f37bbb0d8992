"""Checkpoints and resume: a run that was interrupted ends as if nothing had happened.

python tutorials/09_checkpoints_and_resume.py
"""

# %% A run, once without a break.
import asyncio
import json
import tempfile
from pathlib import Path

from tinker_cookbook import checkpoint_utils, model_info
from tinker_cookbook.recipes.chat_sl.chat_datasets import KnightBuilder
from tinker_cookbook.service import connect
from tinker_cookbook.supervised import train
from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig

MODEL = "tinker-engine/tiny-chat"
renderer_name = model_info.get_recommended_renderer_name(MODEL)
folder = Path(tempfile.mkdtemp(prefix="resume-"))


def train_in(name: str, max_steps: int) -> list[dict[str, float]]:
    """Train up to `max_steps`, and return the rows of `metrics.jsonl`."""
    config = train.Config(
        log_path=str(folder / name),
        model_name=MODEL,
        recipe_name="resume",
        renderer_name=renderer_name,
        dataset_builder=KnightBuilder(
            common_config=ChatDatasetBuilderCommonConfig(
                model_name_for_tokenizer=MODEL, renderer_name=renderer_name, max_length=256, batch_size=8
            )
        ),
        learning_rate=3e-3,
        lr_schedule="constant",  # one that falls would depend on max_steps
        max_steps=max_steps,
        save_every=2,
        eval_every=0,
    )
    asyncio.run(train.main(config))
    return [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]


whole = train_in("whole", 6)

# %% The same in two parts.
# The second call finds the last checkpoint in the folder of the run and goes on from there: weights, optimizer, and the
# place in the data. Ctrl-C and a crash are no different; after a crash at most `save_every` steps are done again.
train_in("parts", 3)
parts = train_in("parts", 6)

print("step  whole     in two parts")
for a, b in zip(whole, parts, strict=True):
    print(f"{a['step']:4}  {a['train_mean_nll']:.6f}  {b['train_mean_nll']:.6f}")
assert [row["train_mean_nll"] for row in whole] == [row["train_mean_nll"] for row in parts], "to the last bit"

# %% What is written down.
# A line for each checkpoint. `state_path` has weights and optimizer, to train on; `sampler_path` weights alone.
for record in checkpoint_utils.load_checkpoints_file(str(folder / "parts")):
    print(f"{record.name}: go on at batch {record.batch}; {record.state_path}")
last = checkpoint_utils.get_last_checkpoint(str(folder / "parts"))
assert last is not None
assert last.state_path is not None
assert last.sampler_path is not None

# %% By hand.
# Three ways to use a checkpoint: go on with it, start anew from its weights, or sample from it.
service_client = connect()
go_on = service_client.create_training_client_from_state_with_optimizer(last.state_path)
start_anew = service_client.create_training_client_from_state(last.state_path)
sampling_client = service_client.create_sampling_client(model_path=last.sampler_path)
print(
    "the same weights, three clients:", go_on.model_id, start_anew.model_id, sampling_client.get_base_model()
)

saved = go_on.save_state("by-hand", ttl_seconds=3600).result()  # kept for an hour
rest = checkpoint_utils.rest_client(service_client)
info = rest.get_weights_info_by_tinker_path(saved.path).result()
print(f"{saved.path}: an adapter of rank {info.lora_rank} for {info.base_model}")
assert info.base_model == MODEL
