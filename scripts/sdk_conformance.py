"""Check the server with several versions of the `tinker` SDK and write `docs/sdk_conformance.md`.

python -m scripts.sdk_conformance [VERSION ...]

Each version gets a virtual environment of its own in `build/sdk` (kept for the next time). Only torch,
which the SDK uses where it finds it, is shared with the Python that runs this.
"""

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tqdm import tqdm

from scripts.sdk_report import STATUSES, Result, report
from tests.conformance.checks import NOT_LOCAL
from tests.server import ROOT, Server, running_server

VERSIONS = ("0.25.0", "0.30.4", "0.34.0", "0.36.0")
NEEDED = ("numpy", "pytest")  # by the checks, besides the SDK
ENVIRONMENTS = ROOT / "build" / "sdk"
REPORT = ROOT / "docs" / "sdk_conformance.md"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"default: {' '.join(VERSIONS)}")
    versions = tuple(parser.parse_args().versions) or VERSIONS
    pythons = {version: environment(version) for version in versions}
    results: dict[str, list[Result]] = {}
    with tempfile.TemporaryDirectory() as folder:
        only_the_tiny_model = {"TINKER_ENGINE_HOME": folder}  # whatever was pulled on this machine
        with running_server(Path(folder), environment=only_the_tiny_model) as server:
            for version, python in pythons.items():
                results[version] = check(version, python, server)
            server_version = server.version
    if versions == VERSIONS:
        REPORT.parent.mkdir(exist_ok=True)
        REPORT.write_text(report(server_version, results, NOT_LOCAL))
        print(f"wrote {REPORT.relative_to(ROOT)}")
    return summary(results)


def environment(version: str) -> Path:
    """The Python of an environment with exactly this version of the SDK; made if it is not there."""
    folder = ENVIRONMENTS / version
    python, ready = folder / "bin" / "python", folder / ".ready"
    if not ready.exists():
        print(f"making an environment for tinker {version} ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, f"tinker=={version}", *NEEDED], check=True)
        _borrow_torch(folder)
        ready.touch()
    return python


def _borrow_torch(folder: Path) -> None:
    """Put our packages behind the environment's own: a path in a .pth file is searched last."""
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")


def check(version: str, python: Path, server: Server) -> list[Result]:
    command = [str(python), "-m", "tests.conformance.run", server.url, server.key]
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    log = ENVIRONMENTS / f"{version}.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command, cwd=ROOT, env=surroundings, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        assert process.stdout is not None
        lines = (json.loads(line) for line in process.stdout)
        results = collect(version, python, lines)
        process.wait()
    if process.returncode not in (0, 1):
        raise SystemExit(f"the checks of {version} broke off; see {log.relative_to(ROOT)}")
    return results


def collect(version: str, python: Path, lines: Any) -> list[Result]:
    """Show the checks as they end; the first line must be from the SDK that was asked for."""
    header = next(lines, None)
    if header is None:
        raise SystemExit(f"the checks of {version} did not start; see {ENVIRONMENTS.relative_to(ROOT)}")
    if header["sdk"] != version or not header["file"].startswith(str(python.parent.parent)):
        raise SystemExit(f"asked for tinker {version}, but got {header['sdk']} from {header['file']}")
    results = [Result(f"{row}", "failed", "no check", "this has no check") for row in header["unchecked"]]
    for line in tqdm(lines, total=header["checks"], desc=f"tinker {version}", unit="check"):
        results.append(Result(line["row"], line["status"], line["error"], line["message"]))
        if line["status"] == "failed":
            tqdm.write(f"FAILED {version} {line['row']}: {line['message'].rstrip()}")
    return results


def summary(results: dict[str, list[Result]]) -> int:
    failed = 0
    for version, outcomes in results.items():
        counts = Counter(one.status for one in outcomes)
        failed += counts["failed"]
        print(f"tinker {version}: " + ", ".join(f"{counts[status]} {status}" for status in STATUSES))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
