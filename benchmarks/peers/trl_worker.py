"""TRL's trainers with peft, a step at a time. The first message says which: sft, rl (GRPO) or dpo.

What a step is: all that happens between the trainer's own marks of its beginning and end, which is without collating
the batch, and with generating and scoring. Defaults of TRL except: float32, no checkpointing unless asked for, no
clipping and no decay, one optimizer step for the whole batch.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from channel import Channel, Message, Turns, versions
from datasets import Dataset  # pyright: ignore[reportMissingImports]
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer  # pyright: ignore[reportMissingImports]

MICRO_BATCH = 8  # samples of a GRPO step that are trained on at once: TRL's default


class InTurns(TrainerCallback):
    """Keeps the trainer waiting for the driver. The figures of a step are known only after it, when it logs them."""

    def __init__(self, channel: Channel):
        self._turns = Turns(channel)

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._turns.begin()

    def on_log(self, *_: Any, logs: dict[str, float] | None = None, **__: Any) -> None:
        kept = {key: (logs or {})[key] for key in ("loss", "reward") if key in (logs or {})}
        self._turns.end(**kept)


def main() -> None:
    channel = Channel()
    setup = channel.receive()
    assert setup is not None
    torch.set_num_threads(setup["threads"])
    turns = InTurns(channel)
    with tempfile.TemporaryDirectory() as scratch:
        trainer = TRAINERS[setup["task"]](setup, turns, scratch)
        channel.send(versions("trl", "peft", "transformers", "torch"))
        trainer.train()
        channel.receive()  # stays until the driver has seen how much memory it took


def sft(setup: Message, turns: InTurns, scratch: str) -> Any:
    rows = [{"input_ids": tokens} for batch in setup["batches"] for tokens in batch]
    return SFTTrainer(
        model=_model(setup),
        args=SFTConfig(
            per_device_train_batch_size=len(setup["batches"][0]) // setup["parts"],
            gradient_accumulation_steps=setup["parts"],
            max_length=None,
            dataset_kwargs={"skip_prepare_dataset": True},
            train_sampling_strategy="sequential",
            **_common(setup, scratch),
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(setup["folder"]),
        peft_config=_lora(setup),
        callbacks=[turns],
    )


def grpo(setup: Message, turns: InTurns, scratch: str) -> Any:
    """All samples of a step are generated at once, and trained on in parts, as is TRL's way."""
    samples = len(setup["batches"][0]) * setup["num_samples"]
    at_once = min(MICRO_BATCH, samples)
    return GRPOTrainer(
        model=_model(setup),
        reward_funcs=even_tokens,
        args=GRPOConfig(
            per_device_train_batch_size=at_once,
            gradient_accumulation_steps=samples // at_once,
            num_generations=setup["num_samples"],
            max_completion_length=setup["new_tokens"],
            generation_kwargs={"min_new_tokens": setup["new_tokens"]},  # no sample ends early
            shuffle_dataset=False,
            **_common(setup, scratch),
        ),
        train_dataset=Dataset.from_list([{"prompt": text} for batch in setup["batches"] for text in batch]),
        processing_class=AutoTokenizer.from_pretrained(setup["folder"]),
        peft_config=_lora(setup),
        callbacks=[turns],
    )


def dpo(setup: Message, turns: InTurns, _: str) -> Any:
    from trl_dpo_worker import make_trainer

    return make_trainer(Path(setup["trl_folder"]), turns, checkpointing=setup["checkpointing"])


TRAINERS = {"sft": sft, "rl": grpo, "dpo": dpo}


def even_tokens(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """The reward: as little work as there can be, and not the same for all of a group."""
    return [sum(token % 2 == 0 for token in tokens) / len(tokens) for tokens in completion_ids]


def _model(setup: Message) -> Any:
    return AutoModelForCausalLM.from_pretrained(setup["folder"], dtype=torch.float32)


def _lora(setup: Message) -> LoraConfig:
    return LoraConfig(r=setup["rank"], lora_alpha=32, lora_dropout=0.0, target_modules="all-linear")


def _common(setup: Message, scratch: str) -> Message:
    return {
        "output_dir": scratch,
        "max_steps": len(setup["batches"]),
        "learning_rate": setup["learning_rate"],
        "lr_scheduler_type": "constant",
        "gradient_checkpointing": setup["checkpointing"],
        "max_grad_norm": 0.0,
        "bf16": False,
        "use_cpu": True,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "seed": 0,
    }


if __name__ == "__main__":
    main()
