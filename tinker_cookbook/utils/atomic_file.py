"""Files that a reader sees whole or not at all."""

import os
import uuid
from pathlib import Path


def write_text_atomically(path: str | os.PathLike[str], text: str) -> None:
    """Make the folder if need be, write beside the target, then rename.

    Lone surrogates, which UTF-8 cannot hold, become question marks.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        draft.write_text(text, encoding="utf-8", errors="replace", newline="\n")
        os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)  # there only if one of the two failed
