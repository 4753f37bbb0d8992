"""Learning rates and sizes to begin with, by model name.

Models outside the tables are read from their files: on this machine, else on the hub (under
`tinker_cookbook.service.connect()` that is the engine).
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.hyperparam_tables import HIDDEN_SIZES, LORA_SIZES, LoraSizes
from tinker_cookbook.local_models import find_folder, read_config, without_variant

__all__ = [
    "UncalibratedModelError",
    "get_full_finetune_lr_multiplier",
    "get_full_finetune_param_count",
    "get_lora_lr_multiplier",
    "get_lora_lr_over_full_finetune_lr",
    "get_lora_param_count",
    "get_lr",
]

_BASE_LR = 5e-5  # full fine-tuning of a model _REFERENCE_WIDTH wide
_REFERENCE_WIDTH = 2000

# How the best rate falls with the width, measured per family. A model of another family that has a family's
# architecture takes its exponent: the nearest that was measured.
_EXPONENTS = {"llama": 0.781, "qwen": 0.0775}
_SAME_ARCHITECTURE = {"mistral": "llama"}


class UncalibratedModelError(ConfigurationError, NotImplementedError):
    """No learning rate was ever measured for this family."""


# --- learning rates ---------------------------------------------------------------------------------------


def get_lr(model_name: str, is_lora: bool = True) -> float:
    """A learning rate to begin with: `5e-5 · (10 if is_lora) · (2000 / hidden size) ** exponent`.

    The exponent is that of the model's family, Llama or Qwen. A model of another name is judged by the
    architecture in its config: SmolLM2 and the engine's tiny model are Llamas (at 1.3e-3 and 3.1e-3), Mistral counts as
    one. For anything else nothing was measured, and the call is refused.
    """
    name = without_variant(model_name)
    config = None if name in HIDDEN_SIZES else _config(name)
    width = HIDDEN_SIZES[name] if config is None else _hidden_size(name, config)
    family = _family(name if config is None else config.get("model_type", ""))
    if family is None:
        raise UncalibratedModelError(
            f"no learning rate is known for the family of {model_name}: give one yourself (learning_rate=...), for "
            "LoRA somewhere between 1e-5 and 1e-3"
        )
    lora_factor = get_lora_lr_over_full_finetune_lr(name) if is_lora else 1.0
    return _BASE_LR * lora_factor * (_REFERENCE_WIDTH / width) ** _EXPONENTS[family]


def get_lora_lr_over_full_finetune_lr(model_name: str, lora_alpha: int = 32) -> float:
    """How much higher the best rate is with LoRA than without. Measured as ten for every model that was tried."""
    return 10.0


def get_full_finetune_lr_multiplier(model_name: str) -> float:
    """For carrying a rate from one model to another: multiply by the quotient of their multipliers."""
    return 1.0 / math.sqrt(get_full_finetune_param_count(model_name))


def get_lora_lr_multiplier(model_name: str) -> float:
    """The same for LoRA; also carries a rate of full fine-tuning to LoRA."""
    return get_full_finetune_lr_multiplier(model_name) * get_lora_lr_over_full_finetune_lr(model_name)


def _family(name_or_type: str) -> str | None:
    lowered = name_or_type.lower()
    for word, family in {**{family: family for family in _EXPONENTS}, **_SAME_ARCHITECTURE}.items():
        if word in lowered:
            return family
    return None


# --- sizes ------------------------------------------------------------------------------------------------


def get_lora_param_count(
    model_name: str,
    lora_rank: int = 32,
    train_mlp: bool = True,
    train_attn: bool = True,
    train_unembed: bool = True,
) -> int:
    """How many parameters are trained."""
    if not (train_mlp or train_attn or train_unembed):
        raise ConfigurationError("one of train_mlp, train_attn and train_unembed must be true")
    name = without_variant(model_name)
    sizes = LORA_SIZES.get(name) or _lora_sizes(name, _config(name))
    chosen = ((train_mlp, sizes.mlp), (train_attn, sizes.attn), (train_unembed, sizes.unembed))
    return lora_rank * sum(size for is_trained, size in chosen if is_trained)


def get_full_finetune_param_count(model_name: str) -> float:
    """How many numbers its weights are, from the headers of its safetensors files."""
    name = without_variant(model_name)
    folder = find_folder(name)
    if folder is None:
        return float(_hub_param_count(name))
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ConfigurationError(f"{folder} has no .safetensors files to count the parameters of {name}")
    return float(sum(_safetensors_param_count(path) for path in files))


def _lora_sizes(name: str, config: Mapping[str, Any]) -> LoraSizes:
    """Of a dense decoder. One with experts has its updates where its config does not say."""
    config = config.get("text_config", config)
    if any("expert" in key for key in config):
        raise ConfigurationError(
            f"the LoRA parameters of {name}, a mixture of experts, cannot be told from its config"
        )
    width, layers = _hidden_size(name, config), _size(name, config, "num_hidden_layers")
    heads, inner = _size(name, config, "num_attention_heads"), _size(name, config, "intermediate_size")
    head = config.get("head_dim") or width // heads
    q, kv = heads * head, (config.get("num_key_value_heads") or heads) * head
    return LoraSizes(
        mlp=layers * 3 * (width + inner),
        attn=layers * (2 * (width + q) + 2 * (width + kv)),
        unembed=width + _size(name, config, "vocab_size"),
    )


def _hidden_size(name: str, config: Mapping[str, Any]) -> int:
    return _size(name, config.get("text_config", config), "hidden_size")


def _size(name: str, config: Mapping[str, Any], field: str) -> int:
    if field not in config:
        raise ConfigurationError(f"the config.json of {name} lacks {field}")
    return config[field]


# --- files of models --------------------------------------------------------------------------------------


def _config(name: str) -> Mapping[str, Any]:
    folder = find_folder(name)
    if folder is not None:
        return read_config(folder)
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HFValidationError

    try:
        path = Path(hf_hub_download(name, "config.json"))
    except (OSError, HFValidationError) as error:
        raise _not_to_be_had(name, "config.json", error) from error
    return read_config(path.parent)


def _hub_param_count(name: str) -> int:
    import httpx
    from huggingface_hub import get_safetensors_metadata
    from huggingface_hub.errors import HFValidationError, NotASafetensorsRepoError

    try:
        return sum(get_safetensors_metadata(name).parameter_count.values())
    except (OSError, httpx.HTTPError, HFValidationError, NotASafetensorsRepoError) as error:
        raise _not_to_be_had(name, "safetensors headers", error) from error


def _not_to_be_had(name: str, what: str, error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"{name} is not in the tables, not on this machine, and its {what} could not be fetched. Type: tinker-engine "
        f"pull {name}; or give the path of a folder that has its files. The hub said: {error}"
    )


def _safetensors_param_count(path: Path) -> int:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > path.stat().st_size:
            raise ConfigurationError(f"{path} is no safetensors file, or was cut short")
        header = json.loads(file.read(length))
    return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
