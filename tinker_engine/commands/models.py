"""`tinker-engine models`: what is installed, and whether it can be used."""

import sys
from math import prod
from pathlib import Path

from tinker_engine.commands.table import aligned, short
from tinker_engine.errors import ModelError
from tinker_engine.model.folders import installed_models
from tinker_engine.model.load import expected_shapes
from tinker_engine.model.pull import verify
from tinker_engine.store.folders import folder_size


def list_models() -> int:
    rows = [_describe(name, folder) for name, folder in installed_models()]
    for row in aligned([("NAME", "SIZE", "PARAMETERS", "FOLDER"), *rows]):
        print(row)
    if len(rows) == 1:  # only what comes with the engine
        print("for more, type: tinker-engine pull ORG/NAME", file=sys.stderr)
    return 0


def _describe(name: str, folder: Path) -> tuple[str, ...]:
    try:
        parameters = short(sum(map(prod, expected_shapes(verify(folder)).values())))
    except ModelError as error:
        parameters = f"unusable: {error}"
    return name, f"{folder_size(folder) / 1e6:,.0f} MB", parameters, str(folder)
