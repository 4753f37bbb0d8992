"""optim_step: JSON → `AdamParams`.

AdamW's settings come under `adam_params`. SDK 0.29 and newer can ask for another family: by name in
`optimizer_config` when a model is made, by `optimizer_params` at each step. AdamW is the only one here.
"""

from dataclasses import dataclass

from tinker_engine.training.types import AdamParams
from tinker_engine.wire.fields import Fields, short


@dataclass(frozen=True)
class OptimStepCall:
    model_id: str
    seq_id: int
    params: AdamParams


def read_optim_step(body: Fields) -> OptimStepCall:
    other = body.optional_nested("optimizer_params")
    if other is not None:
        raise other.error(
            "type", f"only AdamW is supported; send its settings as adam_params instead of {_kind(other)}"
        )
    return OptimStepCall(
        model_id=body.text("model_id"),
        seq_id=body.integer("seq_id", least=1),
        params=_adam_params(body.optional_nested("adam_params") or Fields({}, "adam_params")),
    )


def _adam_params(fields: Fields) -> AdamParams:
    default = AdamParams()
    return AdamParams(
        learning_rate=fields.number("learning_rate", default.learning_rate),
        beta1=fields.number("beta1", default.beta1),
        beta2=fields.number("beta2", default.beta2),
        eps=fields.number("eps", default.eps),
        weight_decay=fields.number("weight_decay", default.weight_decay),
        grad_clip_norm=fields.number("grad_clip_norm", default.grad_clip_norm),
    )


def _kind(fields: Fields) -> str:
    return short(fields.values.get("type"))
