"""From a model's name or path to its checked weights and tokenizer."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tinker_engine.errors import ModelError
from tinker_engine.model.device import pick_device, pick_dtype
from tinker_engine.model.folders import DEFAULT_MODEL, resolve
from tinker_engine.model.spec import ModelSpec
from tinker_engine.model.tokenizer import Tokenizer, eos_token_ids

# Tensors that old checkpoints store although they follow from config.json.
_KNOWN_BUFFERS = re.compile(r".*\.rotary_emb\.inv_freq|.*\.self_attn\.(bias|masked_bias)")

_FLOAT_FORMATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass
class LoadedModel:
    name: str  # as it was asked for
    folder: Path
    spec: ModelSpec
    weights: dict[str, Tensor]  # by Hugging Face parameter name
    tokenizer: Tokenizer
    eos_token_ids: tuple[int, ...]
    device: torch.device
    dtype: torch.dtype


def load_model(
    name_or_path: str = DEFAULT_MODEL, *, device: str | None = None, dtype: str | None = None
) -> LoadedModel:
    chosen_device = pick_device(device)
    chosen_dtype = pick_dtype(chosen_device, dtype)
    folder = resolve(name_or_path)
    spec = ModelSpec.from_folder(folder)
    # Before the weights: these fail fast, and reading weights may take minutes.
    tokenizer = Tokenizer.from_folder(folder)
    ends = eos_token_ids(folder, tokenizer)
    weights = load_weights(folder, spec, dtype=chosen_dtype, device=chosen_device)
    return LoadedModel(name_or_path, folder, spec, weights, tokenizer, ends, chosen_device, chosen_dtype)


def expected_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Every parameter a model of this spec has, by its Hugging Face name."""
    hidden, inner, q, kv = spec.hidden_size, spec.intermediate_size, spec.q_width, spec.kv_width
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q, hidden),
        "self_attn.k_proj.weight": (kv, hidden),
        "self_attn.v_proj.weight": (kv, hidden),
        "self_attn.o_proj.weight": (hidden, q),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if spec.qkv_bias:
        layer |= {f"self_attn.{part}_proj.bias": (width,) for part, width in (("q", q), ("k", kv), ("v", kv))}
    if spec.output_bias:
        layer["self_attn.o_proj.bias"] = (hidden,)
    if spec.mlp_bias:
        layer |= {
            "mlp.gate_proj.bias": (inner,),
            "mlp.up_proj.bias": (inner,),
            "mlp.down_proj.bias": (hidden,),
        }
    if spec.qk_norm:
        layer |= {"self_attn.q_norm.weight": (spec.head_dim,), "self_attn.k_norm.weight": (spec.head_dim,)}
    shapes = {"model.embed_tokens.weight": (spec.vocab_size, hidden), "model.norm.weight": (hidden,)}
    if not spec.tied_embeddings:
        shapes["lm_head.weight"] = (spec.vocab_size, hidden)
    return shapes | {
        f"model.layers.{i}.{name}": shape for i in range(spec.num_layers) for name, shape in layer.items()
    }


@dataclass(frozen=True)
class StoredTensor:
    """What a file's header says of one tensor."""

    path: Path
    shape: tuple[int, ...]
    number_format: str  # as safetensors spells it, e.g. "BF16"


def check_tensors(folder: Path, spec: ModelSpec) -> dict[Path, list[str]]:
    """Compare the files' headers with what the spec needs; the names to read, by file.

    Reads no weights, so it is cheap for a model of any size.
    """
    stored: dict[str, StoredTensor] = {}
    for path in _weight_files(folder):
        for name, tensor in _header(path).items():
            if name in stored:
                raise ModelError(f"{name} is in both {stored[name].path} and {path}; keep one of them")
            stored[name] = tensor
    check_stored(folder, stored, spec)
    to_read: dict[Path, list[str]] = {}
    for name in expected_shapes(spec):
        to_read.setdefault(stored[name].path, []).append(name)
    return to_read


def check_stored(where: Path, stored: Mapping[str, StoredTensor], spec: ModelSpec) -> None:
    """Raise ModelError unless exactly the parameters of `spec` are stored, and in a usable form."""
    expected = expected_shapes(spec)
    if missing := [name for name in expected if name not in stored]:
        raise ModelError(f"{where} lacks {_listed(missing)}; download the model again")
    if unexpected := [name for name in stored if name not in expected and not _is_redundant(name, spec)]:
        raise ModelError(
            f"{where} holds {_listed(unexpected)} that {spec.architecture} does not have: is it quantised, "
            "or stored with an adapter? Only plain weights can be read"
        )
    for name, want in expected.items():
        tensor = stored[name]
        if tensor.shape != want:
            raise ModelError(
                f"{tensor.path}: {name} has shape {tensor.shape}, but config.json makes it {want}"
            )
        if tensor.number_format not in _FLOAT_FORMATS:
            raise ModelError(
                f"{tensor.path}: {name} is stored as {tensor.number_format}; "
                f"supported are: {', '.join(_FLOAT_FORMATS)}"
            )


def load_weights(
    folder: Path, spec: ModelSpec, *, dtype: torch.dtype, device: torch.device
) -> dict[str, Tensor]:
    """All parameters of the model, converted to `dtype`. `lm_head.weight` is absent when tied."""
    weights: dict[str, Tensor] = {}
    for path, names in check_tensors(folder, spec).items():
        with safe_open(path, framework="pt") as file:
            for name in names:
                weights[name] = file.get_tensor(name).to(device=device, dtype=dtype)
    return weights


def stays_mapped(folder: Path, *, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether weights are used where their file is mapped into memory: neither format nor device changes."""
    tensors = [tensor for path in _weight_files(folder) for tensor in _header(path).values()]
    return device.type == "cpu" and all(_FLOAT_FORMATS.get(each.number_format) == dtype for each in tensors)


def _weight_files(folder: Path) -> list[Path]:
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        raise ModelError(
            f"{folder} has neither model.safetensors nor model.safetensors.index.json; only safetensors and "
            ".gguf weights can be read"
        )
    try:
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index} is not a safetensors index: {error!r}") from error
    for name in names:
        if not (folder / name).is_file():
            raise ModelError(f"{folder} lacks {name}, which its index names; download the model again")
    return [folder / name for name in names]


def _header(path: Path) -> dict[str, StoredTensor]:
    """Opening also proves that the file is not cut short."""
    try:
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            return {n: StoredTensor(path, tuple(s.get_shape()), s.get_dtype()) for n, s in slices.items()}
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} is damaged or cut short ({error}); download the model again") from error


def _is_redundant(name: str, spec: ModelSpec) -> bool:
    return (name == "lm_head.weight" and spec.tied_embeddings) or _KNOWN_BUFFERS.fullmatch(name) is not None


def _listed(names: Sequence[str], limit: int = 4) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return f"the tensors {', '.join(names[:limit])}{more}"
