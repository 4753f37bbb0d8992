"""TRL's DPO on pairs that others hand over (`preference_trl`, `pairs`). Runs in an environment with trl and peft:

    python trl_dpo_worker.py FOLDER      reads settings.json, pairs.json and adapter/, writes trl.json

Everything that would make another run of it is set: the order of the pairs, the adapter's first weights, float32, no
dropout, no clipping of gradients.
"""

import json
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset  # pyright: ignore[reportMissingImports]
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import DPOConfig, DPOTrainer  # pyright: ignore[reportMissingImports]


class RecordingTrainer(DPOTrainer):
    """Keeps the loss of each step as it is; what is logged may be rounded."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.losses: list[float] = []

    def compute_loss(self, *arguments: Any, **options: Any) -> Any:
        result = super().compute_loss(*arguments, **options)
        loss = result[0] if isinstance(result, tuple) else result
        self.losses.append(loss.item())
        return result


def main(folder: Path) -> None:
    trainer = make_trainer(folder)
    trainer.train()
    (folder / "trl.json").write_text(json.dumps(report(trainer)))


def make_trainer(
    folder: Path, *callbacks: TrainerCallback, checkpointing: bool = False
) -> "RecordingTrainer":
    settings = json.loads((folder / "settings.json").read_text())
    torch.set_num_threads(settings["threads"])
    pairs = json.loads((folder / "pairs.json").read_text())
    model = AutoModelForCausalLM.from_pretrained(settings["model"], dtype=torch.float32)
    arguments = DPOConfig(
        output_dir=str(folder / "trl"),
        per_device_train_batch_size=settings["batch_size"],
        num_train_epochs=1,
        learning_rate=settings["learning_rate"],
        lr_scheduler_type="linear",
        warmup_steps=0,
        adam_beta1=settings["adam_beta1"],
        adam_beta2=settings["adam_beta2"],
        adam_epsilon=settings["adam_eps"],
        weight_decay=0.0,
        max_grad_norm=0.0,
        beta=settings["beta"],
        max_length=None,
        train_sampling_strategy="sequential",
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=checkpointing,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        seed=0,
    )
    return RecordingTrainer(
        model=PeftModel.from_pretrained(model, folder / "adapter", is_trainable=True),
        args=arguments,
        train_dataset=Dataset.from_list(pairs),
        processing_class=AutoTokenizer.from_pretrained(settings["model"]),
        callbacks=list(callbacks),
    )


def report(trainer: RecordingTrainer) -> dict[str, Any]:
    tokens = ("prompt_ids", "chosen_ids", "rejected_ids")
    steps = [row for row in trainer.state.log_history if "rewards/margins" in row]
    return {
        "versions": {name: metadata.version(name) for name in ("trl", "peft", "transformers", "torch")},
        "trained": sorted(
            name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad
        ),
        "pairs": [{name: list(row[name]) for name in tokens} for row in trainer.train_dataset],
        "steps": [
            {
                "step": i,
                "loss": loss,
                "margin": row["rewards/margins"],
                "chosen_reward": row["rewards/chosen"],
                "rejected_reward": row["rewards/rejected"],
                "learning_rate": row["learning_rate"],
            }
            for i, (loss, row) in enumerate(zip(trainer.losses, steps, strict=True))
        ],
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
