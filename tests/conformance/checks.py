"""Every public method of the SDK's clients and every `tinker` command, checked against a server.

The checks are in a file per client: service, training, sampling, rest; and commands for the CLI.
They use the SDK as a user does. `unchecked` compares them with what the installed SDK has, so that
no method is forgotten, also when a new version brings one.
"""

import threading
import traceback
from dataclasses import dataclass

from tests.conformance import commands, rest, sampling, service, training
from tests.conformance.commands import NOT_LOCAL
from tests.conformance.kit import Kit, Refusal
from tests.conformance.registry import CHECKS, COMMAND, Check, installed_commands, public_methods

__all__ = ["CHECKS", "NOT_LOCAL", "Outcome", "outcome", "unchecked"]
_REGISTERING = (commands, rest, sampling, service, training)  # importing them filled CHECKS

CHECK_SECONDS = 90.0


@dataclass(frozen=True)
class Outcome:
    """`status` is works, refuses, absent or failed; the rest says more about the last three."""

    status: str
    error: str = ""
    message: str = ""


def unchecked() -> set[str]:
    """What the installed SDK has and no check is about."""
    plain = {check.target for check in CHECKS if not (check.option or check.case)}
    offered = public_methods() | {f"{COMMAND}{command}" for command in installed_commands()}
    return offered - plain - set(NOT_LOCAL)


def outcome(check: Check, kit: Kit) -> Outcome:
    """Run one check; whatever it raises is its outcome, and so is having no end."""
    if not check.exists():
        return Outcome("absent")
    ended: list[Outcome] = []
    thread = threading.Thread(target=lambda: ended.append(_run(check, kit)), daemon=True)
    thread.start()
    thread.join(CHECK_SECONDS)
    return ended[0] if ended else Outcome("failed", "Timeout", f"no end after {CHECK_SECONDS:.0f} s")


def _run(check: Check, kit: Kit) -> Outcome:
    try:
        refusal = check.run(kit, check.call())
    except Exception as error:  # the boundary: a failed check is a result, and the next one has to run
        return Outcome("failed", type(error).__name__, "".join(traceback.format_exception(error)))
    if isinstance(refusal, Refusal):
        return Outcome("refuses", refusal.error, refusal.message)
    return Outcome("works")
