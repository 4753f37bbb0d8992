"""Model inputs: a list of chunks → token ids. Only text is supported.

In protobuf a text chunk is int32 bytes, in JSON `{"type": "encoded_text", "tokens": [...]}`.
"""

from collections.abc import Iterable

import numpy as np

from tinker_engine.errors import InputError
from tinker_engine.wire import messages_pb2 as pb
from tinker_engine.wire.fields import Fields, check_object, short
from tinker_engine.wire.tensors import decode_int32

_KINDS = {"image": "images", "image_asset_pointer": "images", "dmel": "audio"}


def decode_chunks(chunks: Iterable[pb.Chunk], where: str) -> np.ndarray:
    """int64 token ids."""
    parts: list[np.ndarray] = []
    for i, chunk in enumerate(chunks):
        kind = chunk.WhichOneof("kind")
        if kind != "encoded_text":
            raise _refusal(kind, f"{where}[{i}]")
        parts.append(decode_int32(chunk.encoded_text.tokens, f"{where}[{i}].tokens"))
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.int64), *parts])


def read_chunks(chunks: list[object], where: str) -> list[int]:
    tokens: list[int] = []
    for i, value in enumerate(chunks):
        chunk = Fields(check_object(value, f"{where}[{i}]"), f"{where}[{i}]")
        kind = chunk.text("type", "encoded_text")
        if kind != "encoded_text":
            raise _refusal(kind, chunk.where)
        tokens += chunk.integers("tokens")
    return tokens


def _refusal(kind: str | None, where: str) -> InputError:
    what = _KINDS.get(kind or "", f"a chunk of kind {short(kind)}" if kind else "a chunk of unknown kind")
    return InputError(where, f"only text as token ids is supported, not {what}")
