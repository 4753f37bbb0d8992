"""What the api process and a compute worker say to each other, and how it travels.

Requests go to the worker as they came over HTTP and answers come back as they go out: the api process never
decodes a tensor, the worker never sees HTTP. A frame is a length of eight bytes and a pickle; both ends are
this program on this machine, over a socket pair that nothing else can open.
"""

import pickle
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

HEADER = struct.Struct(">Q")

SAMPLING = "sampling"

TrainKind = Literal[
    "create",
    "forward_backward",
    "optim_step",
    "load_weights",
    "save_weights",
    "save_sampler",
    "save_external",
    "drop_gradient",
]


# --- to the worker ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OpenRun:
    """Hold this run from now on: a new adapter, or the state in `state`."""

    run: str
    client: str  # whose share of the machine its work counts against
    model: str
    model_folder: Path
    lora: dict[str, int | bool | None]
    room: int  # bytes for activations
    state: Path | None


@dataclass(frozen=True)
class CloseRun:
    run: str


@dataclass(frozen=True)
class Train:
    """One operation of an open run; they are carried out in the order in which they come."""

    op: str
    run: str
    kind: TrainKind
    position: int
    body: bytes = b""
    source: Path | None = None  # load_weights: the checkpoint's folder
    with_optimizer: bool = False
    target: Path | None = None  # where a save goes
    replay: bool = False  # the result is known; only its effect on the run is wanted


@dataclass(frozen=True)
class Sample:
    op: str
    client: str
    model: str
    model_folder: Path
    snapshot: str | None
    snapshot_folder: Path | None
    body: bytes
    seed: int
    stream: bool = False


@dataclass(frozen=True)
class Cancel:
    op: str


@dataclass(frozen=True)
class Forget:
    """These snapshots will not be asked for again."""

    snapshots: list[str]


@dataclass(frozen=True)
class SaveAll:
    """Save every run that has moved since it was saved, then report `Stopped`: the engine is ending."""


ToWorker = OpenRun | CloseRun | Train | Sample | Cancel | Forget | SaveAll


# --- from the worker -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hello:
    pid: int
    room: int  # bytes that activations of a new run may take


@dataclass(frozen=True)
class Running:
    """What is computed from here on; if the worker dies, this is what it died of."""

    op: str  # or SAMPLING, or the run that is opened


@dataclass(frozen=True)
class Done:
    op: str
    result: bytes
    media_type: str
    size: int = 0  # of what was saved


@dataclass(frozen=True)
class Failed:
    op: str
    message: str
    category: Literal["user", "server"]
    trace: str | None = None  # for the log
    replay: bool = False


@dataclass(frozen=True)
class Progress:
    """New tokens of one sample of a streamed request."""

    op: str
    index: int
    tokens: list[int]
    logprobs: list[float]
    topk: list[list[tuple[int, float]]] | None
    stop_reason: Literal["stop", "length"] | None  # with the sample's last tokens
    cached: int  # tokens of the prompt that were in the cache


@dataclass(frozen=True)
class Closed:
    """A run that could not be opened, or not yet."""

    run: str


@dataclass(frozen=True)
class Saved:
    """The run as it was after `position` is in `folder`."""

    run: str
    position: int
    folder: Path


@dataclass(frozen=True)
class Trouble:
    """Something the operator should know; no client waits for it."""

    message: str


@dataclass(frozen=True)
class Stats:
    values: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Stopped:
    pass


FromWorker = Hello | Running | Done | Failed | Progress | Closed | Saved | Trouble | Stats | Stopped


def frame(message: ToWorker | FromWorker) -> bytes:
    payload = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return HEADER.pack(len(payload)) + payload
