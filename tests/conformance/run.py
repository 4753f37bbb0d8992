"""Run all checks with the SDK of this Python and write one line of JSON for each, as it ends.

python -m tests.conformance.run URL KEY

The first line says which SDK it is and where it comes from.
"""

import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import tinker

from tests.conformance.checks import CHECKS, outcome, unchecked
from tests.conformance.kit import Kit


def main(url: str, key: str) -> int:
    write(
        {
            "sdk": tinker.__version__,
            "file": tinker.__file__,
            "checks": len(CHECKS),
            "unchecked": sorted(unchecked()),
        }
    )
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        kit = Kit(url, key, Path(folder))
        for check in CHECKS:
            started = time.monotonic()
            result = outcome(check, kit)
            failed += result.status == "failed"
            seconds = round(time.monotonic() - started, 3)
            write({"check": check.name, "row": check.row, **asdict(result), "seconds": seconds})
    return 1 if failed else 0


def write(line: dict[str, object]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
