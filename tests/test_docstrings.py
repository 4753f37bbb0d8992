"""What an editor shows on hover: every public class and function has a docstring of its own.

Read from the source, for a dataclass without one is given its signature as `__doc__`. Public is what the surface of the
cookbook has, and what a module of either package lists in `__all__`.
"""

import ast
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("tinker_cookbook", "tinker_engine")
SURFACE = ROOT / "tests" / "tinker_cookbook" / "surface" / "surface.json"

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Public(NamedTuple):
    module: str
    name: str


def source_of(module: str) -> Path | None:
    path = ROOT.joinpath(*module.split("."))
    found = [each for each in (path / "__init__.py", path.with_suffix(".py")) if each.is_file()]
    return found[0] if found else None


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def listed(tree: ast.Module) -> list[str]:
    """`__all__`."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(getattr(t, "id", "") == "__all__" for t in node.targets):
            return list(ast.literal_eval(node.value))
    return []


def public_names() -> Iterator[Public]:
    for module, names in json.loads(SURFACE.read_text())["modules"].items():
        if source_of(module) is not None:  # the surface also has what is still to come
            yield from (Public(module, name) for name in names)
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            yield from (Public(module, name) for name in listed(parsed(path)))


def definition(public: Public) -> tuple[Path, Definition] | None:
    """Where a class or a function is written, followed through imports; None for values and what others made."""
    path = source_of(public.module)
    if path is None:
        return None
    for node in reversed(parsed(path).body):  # the last of several, as after overloads
        if isinstance(node, Definition) and node.name == public.name:
            return path, node
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for alias in node.names:
                if (alias.asname or alias.name) == public.name:
                    return definition(Public(node.module, alias.name))
    return None


def without_docstring() -> list[str]:
    wrong: set[str] = set()
    for public in public_names():
        found = definition(public)
        if found is not None and not ast.get_docstring(found[1]):
            path, node = found
            wrong.add(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    return sorted(wrong)


def test_every_public_name_has_a_docstring():
    assert without_docstring() == []


def test_types_are_shipped():
    assert all((ROOT / package / "py.typed").is_file() for package in PACKAGES)
    assert "py.typed" in (ROOT / "pyproject.toml").read_text().split("[tool.setuptools.package-data]")[1]
