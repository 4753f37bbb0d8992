"""`tinker-engine doctor`: what is wrong here, and what to type."""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

from tinker_engine import config
from tinker_engine.commands.checks import data as data_checks
from tinker_engine.commands.checks import machine, models, network
from tinker_engine.commands.checks.finding import Finding, failed

Check = Callable[[], Iterator[Finding]]

_MARKS = {"ok": "ok", "warning": "warning", "failed": "FAILED"}


def doctor(data: Path | None = None, *, as_json: bool = False) -> int:
    """0 unless something failed."""
    folder = (data or config.data_dir()).expanduser().absolute()
    findings: list[Finding] = []
    for finding in examine(folder):
        findings.append(finding)
        if not as_json:
            _show(finding)
    bad = sum(finding.level == "failed" for finding in findings)
    if as_json:
        print(json.dumps({"ok": not bad, "findings": [asdict(finding) for finding in findings]}, indent=1))
    else:
        warnings = sum(finding.level == "warning" for finding in findings)
        print(f"\n{len(findings)} checks: {bad} failed, {warnings} warnings", flush=True)
    return 1 if bad else 0


def examine(data: Path) -> Iterator[Finding]:
    plain: list[Check] = [
        machine.python,
        partial(data_checks.directory, data),
        partial(data_checks.disk, data),
        partial(data_checks.database, data),
        partial(data_checks.checkpoints, data),
        partial(network.engine, data),
        partial(network.port, data),
        network.proxies,
        partial(network.variables, data),
        machine.sdk,
    ]
    for check in plain:
        yield from _guarded(check)
    torch = list(_guarded(machine.torch))
    yield from torch
    if all(finding.level == "ok" for finding in torch):  # nothing below works without it
        for check in (
            machine.processor,
            machine.kernels,
            machine.threads,
            machine.memory,
            models.installed,
            models.at_work,
        ):
            yield from _guarded(check)


def _guarded(check: Check) -> Iterator[Finding]:
    """The boundary: a check that breaks is a finding too, and the others go on."""
    name = getattr(check, "func", check).__name__.replace("_", " ")
    try:
        yield from check()
    except Exception as error:
        report = "report this with the output of: tinker-engine doctor --json"
        yield failed(name, f"the check itself broke: {type(error).__name__}: {error}", report)


def _show(finding: Finding) -> None:
    print(f"{_MARKS[finding.level]:8} {finding.what}: {finding.text}")
    if finding.fix is not None:
        print(f"{'':8} → {finding.fix}")
    sys.stdout.flush()  # the last checks take seconds
