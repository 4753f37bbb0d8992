"""create_model: JSON → which base model, and what of it a LoRA adapter trains."""

from collections.abc import Mapping
from dataclasses import dataclass

from tinker_engine.wire.fields import MOST_SEED, Fields
from tinker_engine.wire.optimizer_config import check_optimizer_config

MOST_RANK = 4096
PARTS = ("train_attn", "train_mlp", "train_unembed")


@dataclass(frozen=True)
class CreateModelCall:
    session_id: str
    model_seq_id: int  # counts from 0 per session
    base_model: str
    lora: dict[str, int | bool | None]  # rank, seed, and which parts are trained
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


def _lora(fields: Fields) -> dict[str, int | bool | None]:
    parts = {name: fields.flag(name, True) for name in PARTS}
    if not any(parts.values()):
        raise fields.error("train_attn", "train_mlp or train_unembed must be true")
    return {
        "rank": fields.integer("rank", least=1, most=MOST_RANK),
        "seed": fields.optional_integer("seed", least=0, most=MOST_SEED),
        **parts,
    }
