"""Checks of the `tinker` command, each run as a process of its own as a user would."""

import json
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tinker

from tests.conformance.kit import MODEL, RANK, WAIT_SECONDS, Call, Kit, Refusal, succeeded
from tests.conformance.registry import check
from tests.conformance.training import safetensors_shapes

NOT_LOCAL = {"tinker checkpoint push-hf": "uploads to the Hugging Face Hub; the server has no part in it"}

# What the `tinker` script does, but without torch: no command needs it, and importing it takes longer than they do.
START = "import sys; sys.modules['torch'] = None; from tinker.cli.__main__ import main; main()"


def tinker_command(kit: Kit, *words: str, stdin: str = "", **environment: str) -> Any:
    """Tried again if a signal ended it. A command has been seen to fail without a word; the SDK's threads, which still
    run while Python shuts down, are the likely reason, and no server can cause that."""

    def attempt() -> Any:
        return kit.python("-c", START, *words, stdin=stdin.encode(), **environment)

    done = attempt()
    if done.returncode >= 0:
        return done
    said = done.stderr.decode(errors="replace")
    warnings.warn(f"tinker {' '.join(words)} ended with {done.returncode}: {said}", stacklevel=2)
    return attempt()


def run(kit: Kit, *words: str) -> str:
    return succeeded(tinker_command(kit, *words))


def run_json(kit: Kit, *words: str) -> Any:
    return json.loads(run(kit, "-f", "json", *words))


def refusal_of(done: Any) -> Refusal:
    """The command ended with an error in words, not with a traceback."""
    assert done.returncode != 0, "this should have been refused, but it was done"
    text = done.stderr.decode(errors="replace").strip()
    assert "Error:" in text, text
    assert "Traceback" not in text, text
    return Refusal(f"exit {done.returncode}", text[text.index("Error:") :])


def run_refused(kit: Kit, *words: str) -> Refusal:
    return refusal_of(tinker_command(kit, *words))


def run_either(kit: Kit, *words: str) -> Refusal | None:
    done = tinker_command(kit, *words)
    return None if done.returncode == 0 else refusal_of(done)


@check("tinker version")
def version(kit: Kit, call: Call) -> None:
    assert tinker.__version__ in run(kit, "version")


@check("tinker auth status")
def status(kit: Kit, call: Call) -> None:
    assert "Tinker accessible: yes" in run(kit, "auth", "status")


@check("tinker auth status", case="with a wrong key")
def wrong_key(kit: Kit, call: Call) -> Refusal:
    refusal = refusal_of(tinker_command(kit, "auth", "status", TINKER_API_KEY="tml-wrong"))
    assert "Authentication failed" in refusal.message
    return refusal


@check("tinker auth whoami")
def whoami(kit: Kit, call: Call) -> Refusal | None:
    return run_either(kit, "auth", "whoami")


@check("tinker auth login")
def login(kit: Kit, call: Call) -> Refusal | None:
    home = kit.folder / kit.name()
    home.mkdir()
    done = tinker_command(kit, "auth", "login", stdin=f"{kit.key}\n", TINKER_API_KEY="", HOME=str(home))
    if done.returncode != 0:
        return refusal_of(done)
    assert kit.key in (home / ".tinker" / "credentials.json").read_text()
    succeeded(tinker_command(kit, "auth", "logout", TINKER_API_KEY="", HOME=str(home)))
    return None


@check("tinker auth logout")
def logout(kit: Kit, call: Call) -> Refusal:
    return run_refused(kit, "auth", "logout")  # of somebody who never logged in


@check("tinker model list")
def models(kit: Kit, call: Call) -> None:
    assert MODEL in run(kit, "-f", "json", "model", "list", "tiny")


@check("tinker run list")
def runs(kit: Kit, call: Call) -> None:
    found = run_json(kit, "run", "list", "--limit", "0")["runs"]
    assert kit.trained.model_id in {one["training_run_id"] for one in found}


@check("tinker run info")
def run_info(kit: Kit, call: Call) -> None:
    found = run_json(kit, "run", "info", kit.trained.model_id)
    assert (found["training_run_id"], found["lora_rank"]) == (kit.trained.model_id, RANK)


@check("tinker checkpoint list")
def checkpoints(kit: Kit, call: Call) -> None:
    path = kit.checkpoint()
    found = run_json(kit, "checkpoint", "list", "--run-id", kit.trained.model_id)["checkpoints"]
    assert path in {one["tinker_path"] for one in found}


@check("tinker checkpoint info")
def checkpoint_info(kit: Kit, call: Call) -> None:
    path = kit.checkpoint()
    found = run_json(kit, "checkpoint", "info", path)
    assert (found["tinker_path"], found["lora_rank"]) == (path, RANK)


@check("tinker checkpoint publish")
def publish(kit: Kit, call: Call) -> None:
    path = kit.checkpoint()
    run(kit, "checkpoint", "publish", path)
    assert kit.listed(path).public is True


@check("tinker checkpoint unpublish")
def unpublish(kit: Kit, call: Call) -> None:
    path = kit.checkpoint()
    kit.rest.publish_checkpoint_from_tinker_path(path).result(WAIT_SECONDS)
    run(kit, "checkpoint", "unpublish", path)
    assert kit.listed(path).public is False


@check("tinker checkpoint set-ttl")
def set_ttl(kit: Kit, call: Call) -> None:
    path = kit.checkpoint()
    run(kit, "checkpoint", "set-ttl", path, "--ttl", "7200")
    assert kit.listed(path).expires_at > datetime.now(UTC)


@check("tinker checkpoint delete")
def delete(kit: Kit, call: Call) -> None:
    path = kit.checkpoint()
    run(kit, "checkpoint", "delete", path, "--yes")
    assert kit.listed(path) is None


@check("tinker checkpoint download")
def download(kit: Kit, call: Call) -> Refusal | None:
    """Up to 0.35 an archive that the server may not make; since then the files of a PEFT adapter."""
    path, folder = kit.checkpoint(), kit.folder / kit.name()
    words = ("-f", "json", "checkpoint", "download", path, "--output", str(folder))
    if hasattr(kit.rest, "get_checkpoint_archive_url"):
        return run_either(kit, *words)
    said = run(kit, *words)
    target = Path(json.loads(said[said.index("{") :])["destination"])
    assert json.loads((target / "adapter_config.json").read_text())["r"] == RANK
    assert safetensors_shapes((target / "adapter_model.safetensors").read_bytes())
    return None


@check("tinker session export-trace")
def export_trace(kit: Kit, call: Call) -> Refusal | None:
    return run_either(kit, "session", "export-trace", kit.session_id)


@check("tinker billing usage")
def billing(kit: Kit, call: Call) -> Refusal:
    return run_refused(kit, "billing", "usage", "2026-01-01", "2026-02-01")


@check("tinker billing checkpoint-storage")
def storage(kit: Kit, call: Call) -> Refusal:
    return run_refused(kit, "billing", "checkpoint-storage")
