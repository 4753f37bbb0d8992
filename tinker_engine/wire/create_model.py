"""create_model: JSON → which base model, and what of it a LoRA adapter trains."""

from collections.abc import Mapping
from dataclasses import dataclass

from tinker_engine.model.lora import LoraSpec
from tinker_engine.wire.fields import MOST_SEED, Fields
from tinker_engine.wire.optimizer import check_optimizer_config


@dataclass(frozen=True)
class CreateModelCall:
    session_id: str
    model_seq_id: int  # counts from 0 per session
    base_model: str
    lora: LoraSpec
    user_metadata: Mapping[str, object] | None = None


def read_create_model(body: Fields) -> CreateModelCall:
    check_optimizer_config(body)
    if not body.has("lora_config"):
        raise body.error(
            "lora_config", 'is missing; only LoRA is trained here: send {"rank": 32} or the like'
        )
    metadata = body.optional_nested("user_metadata")
    return CreateModelCall(
        session_id=body.text("session_id"),
        model_seq_id=body.integer("model_seq_id", least=0),
        base_model=body.text("base_model"),
        lora=_lora(body.nested("lora_config")),
        user_metadata=metadata.values if metadata else None,
    )


def _lora(fields: Fields) -> LoraSpec:
    return LoraSpec(
        rank=fields.integer("rank", least=1),
        seed=fields.optional_integer("seed", most=MOST_SEED),
        train_attn=fields.flag("train_attn", True),
        train_mlp=fields.flag("train_mlp", True),
        train_unembed=fields.flag("train_unembed", True),
    )
