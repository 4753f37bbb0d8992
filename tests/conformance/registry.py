"""Which checks there are, what each is about, and which of it the SDK at hand has."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tinker

from tests.conformance.kit import Call, Kit, Refusal

CheckFunction = Callable[[Kit, Call], Refusal | None]
COMMAND = "tinker "


@dataclass(frozen=True)
class Check:
    """`target` is `Class.method` or a command line such as `tinker run list`.

    `option` names a parameter of the method that this check is about and `case` then its value, if it
    matters; `case` alone is any other situation. Without either the check is about the target as such.
    """

    target: str
    run: CheckFunction
    option: str = ""
    case: str = ""

    @property
    def row(self) -> str:
        """What the check is about, as the table of results names it."""
        if self.option:
            return f"{self.target}({self.option}={self.case or '…'})"
        return f"{self.target}, {self.case}" if self.case else self.target

    @property
    def name(self) -> str:
        return f"{self.row.replace(' ', '_')}-{self.run.__name__}"

    def call(self) -> Call:
        return Call(self.target.rpartition(".")[2])

    def exists(self) -> bool:
        """Whether the installed SDK has what this check is about."""
        if self.target.startswith(COMMAND):
            return self.target.removeprefix(COMMAND) in installed_commands()
        class_name, _, method = self.target.partition(".")
        function = getattr(client_classes()[class_name], method, None)
        if function is None:
            return False
        return not self.option or self.option in inspect.signature(function).parameters


CHECKS: list[Check] = []


def check(
    target: str, *, option: str = "", case: str = "", twin: bool | None = None
) -> Callable[[CheckFunction], CheckFunction]:
    """Register a check; a method's plain check also runs as the check of its `_async` twin."""

    def register(function: CheckFunction) -> CheckFunction:
        with_twin = not (option or case or target.startswith(COMMAND)) if twin is None else twin
        for name in [target, f"{target}_async"] if with_twin else [target]:
            CHECKS.append(Check(name, function, option, case))
        return function

    return register


def client_classes() -> dict[str, type[Any]]:
    # RestClient became a name of the package only in 0.36.
    from tinker.lib.public_interfaces.rest_client import RestClient

    known = (tinker.ServiceClient, tinker.TrainingClient, tinker.SamplingClient, RestClient)
    return {known_class.__name__: known_class for known_class in known}


def public_methods() -> set[str]:
    return {
        f"{name}.{member}"
        for name, client in client_classes().items()
        for member in dir(client)
        if not member.startswith("_") and callable(getattr(client, member))
    }


def installed_commands() -> set[str]:
    """The commands of the installed `tinker`, such as `run list`."""
    import click
    from tinker.cli.__main__ import main_cli

    def below(group: click.Command, words: tuple[str, ...]) -> set[str]:
        if not isinstance(group, click.Group):
            return {" ".join(words)}
        context = click.Context(group)
        found = ((name, group.get_command(context, name)) for name in group.list_commands(context))
        return {line for name, command in found if command for line in below(command, (*words, name))}

    return below(main_cli, ())
