"""The state of the code behind a run: for every repository its commit and what differs from it.

The text can be given to `git apply` after the lines that start with `###` and `modules:`.
"""

import importlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

GIT_SECONDS = 30
MAX_DIFF_CHARS = 10_000_000
MAX_NEW_FILES = 100
MAX_NEW_FILE_BYTES = 100_000
_CODE = {".cfg", ".ini", ".jinja", ".py", ".sh", ".toml", ".yaml", ".yml"}
"""New files whose text is recorded. Others are only named: data is large, and a `.env` holds secrets."""


class _GitError(Exception):
    """Git is not there, or cannot say; the message is for the reader of code.diff."""


def code_state(modules: Sequence[str | ModuleType] = ("tinker_cookbook",)) -> str:
    """The repositories that hold these modules, each once; `"__main__"` is the script that runs.

    Never raises for what git does: a module without a repository, or a machine without git, is a line in the text.
    """
    repositories: dict[Path, list[str]] = {}
    sections: list[str] = []
    for module in modules:
        name = module if isinstance(module, str) else module.__name__
        try:
            root = Path(_git(_folder(module), "rev-parse", "--show-toplevel").strip())
            repositories.setdefault(root, []).append(name)
        except _GitError as error:
            sections.append(f"### module: {name} ({error})\n")
    return "\n".join([_repository(root, names) for root, names in repositories.items()] + sections)


def _folder(module: str | ModuleType) -> Path:
    if isinstance(module, str):
        try:
            module = sys.modules.get(module) or importlib.import_module(module)
        except ImportError as error:
            raise _GitError(f"cannot be imported: {error}") from error
    if file := getattr(module, "__file__", None):
        return Path(file).resolve().parent
    return Path(
        next(iter(getattr(module, "__path__", [])), ".")
    )  # a namespace package, or a prompt: where it stands


def _repository(root: Path, names: list[str]) -> str:
    try:
        commit = _git(root, "rev-parse", "--verify", "HEAD").strip()
        diff = _git(root, "diff", "--no-color", "--no-ext-diff", "HEAD")
    except _GitError as error:
        commit, diff = "unknown", f"({error})\n"
    try:
        diff += _new_files(root)
    except _GitError as error:
        diff += f"(new files: {error})\n"
    if len(diff) > MAX_DIFF_CHARS:
        diff = f"{diff[:MAX_DIFF_CHARS]}\n(cut here, of {len(diff)} characters)\n"
    return (
        f"### repo: {root} @ {commit}\nmodules: {', '.join(names)}\n{diff or '(no local changes)' + chr(10)}"
    )


def _new_files(root: Path) -> str:
    """Files that git does not know yet: the script of today's experiment is often one."""
    names = [
        name for name in _git(root, "ls-files", "--others", "--exclude-standard", "-z").split("\0") if name
    ]
    recorded = [name for name in names if _is_small_code(root / name)][:MAX_NEW_FILES]
    diffs = [
        _git(root, "diff", "--no-color", "--no-index", "--", os.devnull, name, ok=(0, 1)) for name in recorded
    ]
    only_named = [name for name in names if name not in set(recorded)]
    if only_named:
        shown = "".join(f"#   {name}\n" for name in only_named[:MAX_NEW_FILES])
        diffs.append(f"# new files, contents not recorded: {len(only_named)}\n{shown}")
    return "".join(diffs)


def _is_small_code(path: Path) -> bool:
    try:
        return path.suffix in _CODE and path.stat().st_size <= MAX_NEW_FILE_BYTES
    except OSError:  # gone since git listed it, or a broken link
        return False


def _git(folder: Path, *arguments: str, ok: tuple[int, ...] = (0,)) -> str:
    environment = os.environ | {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=GIT_SECONDS,
            env=environment,
        )
    except FileNotFoundError as error:
        raise _GitError("git is not installed") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _GitError(f"git failed: {error}") from error
    if done.returncode in ok:
        return done.stdout.decode("utf-8", "replace")
    message = done.stderr.decode("utf-8", "replace").strip()
    if "not a git repository" in message:
        raise _GitError("not in a git repository")
    raise _GitError(f"git failed: {message.splitlines()[0] if message else f'exit code {done.returncode}'}")
