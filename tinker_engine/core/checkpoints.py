"""Saved weights by name, each owned by a key, each an immutable folder."""

import asyncio
import re
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from tinker_engine.core import journal
from tinker_engine.core.records import Checkpoint
from tinker_engine.errors import InputError, NotFoundError
from tinker_engine.store.database import Database, Work
from tinker_engine.store.folders import folder_size, remove_folder, verify, whole_folder

KINDS = ("weights", "sampler_weights", "external_weights")
EPHEMERAL = "ephemeral"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_PATH = re.compile(r"tinker://([^/]+)/([^/]+)/([^/]+)")
LONGEST_TTL = 100 * 365 * 86400


def check_name(name: str, field: str = "path") -> str:
    if not _NAME.fullmatch(name):
        raise InputError(
            field,
            f"must be 1 to 128 letters, digits, '.', '_' or '-', beginning with a letter or digit; got {name[:140]!r}",
        )
    return name


def expiry(ttl_seconds: int | None) -> float | None:
    if ttl_seconds is None:
        return None
    if not 0 < ttl_seconds <= LONGEST_TTL:
        raise InputError("ttl_seconds", f"must be between 1 and {LONGEST_TTL}, got {ttl_seconds}")
    return time.time() + ttl_seconds


def parse_path(path: str, field: str = "path") -> tuple[str, str, str]:
    match = _PATH.fullmatch(path)
    if match is None or match[2] not in KINDS:
        raise InputError(field, f"must look like tinker://RUN/{'|'.join(KINDS)}/NAME, got {path[:200]!r}")
    return match[1], match[2], match[3]


class Checkpoints:
    def __init__(self, database: Database, data: Path, on_removed: Callable[[list[str]], None]):
        self._database = database
        self._data = data
        self._on_removed = on_removed
        self._by_id = {
            checkpoint.id: checkpoint for checkpoint in database.read_now(journal.load(Checkpoint))
        }
        self._by_name = {_key(checkpoint): checkpoint for checkpoint in self._by_id.values()}
        self.changed = asyncio.Event()  # expiries may have

    def refs(self) -> set[str]:
        return set(self._by_id)

    def folder(self, checkpoint_id: str) -> Path:
        return self._data / "checkpoints" / checkpoint_id

    def get(self, checkpoint_id: str) -> Checkpoint:
        found = self._by_id.get(checkpoint_id)
        if found is None:
            raise NotFoundError(
                "these weights are no longer stored: they expired, were deleted, or were an unnamed snapshot that "
                "gave way to newer ones; keep weights with save_weights_for_sampler(name)"
            )
        found.used = time.time()
        return found

    def check_free(self, run: str, kind: str, name: str) -> None:
        if (run, kind, name) in self._by_name:
            raise InputError(
                "path",
                f"{name!r} is already saved; choose another name, delete it"
                + (", or save with overwrite=True" if kind == "weights" else ""),
            )

    def find(self, path: str, owner: str, field: str = "path") -> Checkpoint:
        """The checkpoint at a tinker:// path, if this owner may read it."""
        found = self._by_name.get(parse_path(path, field))
        if found is None or not (found.public or found.owner == owner):
            raise NotFoundError(f"there is no checkpoint {path[:300]}, or it is not yours to use")
        return found

    def owned(self, run: str, kind: str, name: str, owner: str) -> Checkpoint:
        found = self._by_name.get((run, kind, name))
        if found is None or found.owner != owner:
            raise NotFoundError(f"you have no checkpoint tinker://{run[:100]}/{kind[:40]}/{name[:140]}")
        return found

    def named(self, owner: str, run: str | None = None) -> list[Checkpoint]:
        """Newest first."""
        found = [
            checkpoint
            for checkpoint in self._by_id.values()
            if checkpoint.owner == owner and checkpoint.kind in KINDS and run in (None, checkpoint.run_id)
        ]
        return sorted(found, key=lambda checkpoint: -checkpoint.created)

    def public(self) -> Iterable[Checkpoint]:
        return (checkpoint for checkpoint in self._by_id.values() if checkpoint.public)

    def adding(self, checkpoint: Checkpoint):
        """The write that adds it, and drops what had its name; call `added` once that is committed."""
        replaced = self._by_name.get(_key(checkpoint))
        if replaced is None:
            return journal.add(checkpoint)
        return journal.together(journal.remove(replaced), journal.add(checkpoint))

    def added(self, checkpoint: Checkpoint) -> None:
        replaced = self._by_name.get(_key(checkpoint))
        if replaced is not None and replaced.id != checkpoint.id:
            self._drop(replaced)
        self._by_id[checkpoint.id] = self._by_name[_key(checkpoint)] = checkpoint
        self.changed.set()

    async def remove(self, checkpoints: list[Checkpoint]) -> None:
        if checkpoints:
            await self._database.write(journal.together(*map(journal.remove, checkpoints)))
            for checkpoint in checkpoints:
                self._drop(checkpoint)

    async def set_expiry(self, checkpoint: Checkpoint, ttl_seconds: int | None) -> None:
        changed = replace(checkpoint, expires=expiry(ttl_seconds))
        await self._database.write(journal.store(changed))
        checkpoint.expires = changed.expires
        self.changed.set()

    async def set_public(self, checkpoint: Checkpoint, public: bool) -> None:
        await self._database.write(journal.store(replace(checkpoint, public=public)))
        checkpoint.public = public

    async def copy(self, source: Checkpoint, copied: Checkpoint, also: Work[None]) -> None:
        """An independent copy under another run and owner; `also` is written with it."""
        await asyncio.to_thread(_copy_folder, self.folder(source.id), self.folder(copied.id))
        copied.size = folder_size(self.folder(copied.id))
        await self._database.write(journal.together(also, self.adding(copied)))
        self.added(copied)

    def expired(self) -> list[Checkpoint]:
        now = time.time()
        return [c for c in self._by_id.values() if c.expires is not None and c.expires <= now]

    def next_expiry(self) -> float | None:
        return min((c.expires for c in self._by_id.values() if c.expires is not None), default=None)

    def surplus_ephemerals(self, most_bytes: int, unused_since: float) -> list[Checkpoint]:
        """Unnamed snapshots to let go, least recently used first, so that the rest fits."""
        ephemeral = sorted(
            (c for c in self._by_id.values() if c.kind == EPHEMERAL), key=lambda checkpoint: checkpoint.used
        )
        excess = sum(checkpoint.size for checkpoint in ephemeral) - most_bytes
        surplus: list[Checkpoint] = []
        for checkpoint in ephemeral:
            if excess <= 0 or checkpoint.used > unused_since:
                break
            surplus.append(checkpoint)
            excess -= checkpoint.size
        return surplus

    def _drop(self, checkpoint: Checkpoint) -> None:
        self._by_id.pop(checkpoint.id, None)
        if self._by_name.get(_key(checkpoint)) is checkpoint:
            del self._by_name[_key(checkpoint)]
        remove_folder(self.folder(checkpoint.id))
        self._on_removed([checkpoint.id])


def _key(checkpoint: Checkpoint) -> tuple[str, str, str]:
    return checkpoint.run_id, checkpoint.kind, checkpoint.name


def _copy_folder(source: Path, target: Path) -> None:
    files = verify(source)
    with whole_folder(target) as folder:
        for name in files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, folder / name)
