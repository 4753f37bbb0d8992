"""Messages of the `logging` module: to the console, and to a file that keeps those of every start."""

import logging
import os
import shlex
import sys
from pathlib import Path

from rich.console import Console
from rich.style import Style

from tinker_cookbook.utils.redaction import mask_arguments

_FORMAT = "%(name)s:%(lineno)d [%(levelname)s] %(message)s"
_COLOURS = {
    logging.DEBUG: Style(dim=True),
    logging.INFO: Style(color="green"),
    logging.WARNING: Style(color="yellow"),
    logging.ERROR: Style(color="red"),
    logging.CRITICAL: Style(color="red", bold=True),
}


class _ColourFormatter(logging.Formatter):
    """Colours the level, and shows the coloured form of a message that brings one as `extra={"ansi": text}`."""

    def format(self, record: logging.LogRecord) -> str:
        shown = logging.makeLogRecord(record.__dict__)  # the other handlers get it as it is
        shown.levelname = _COLOURS.get(record.levelno, Style.null()).render(record.levelname)
        if ansi := getattr(record, "ansi", None):
            shown.msg, shown.args = ansi, ()
        return super().format(shown)


def configure_logging_module(path: str, level: int = logging.INFO) -> logging.Logger:
    """Send all messages to the console and to the file at `path`, in place of the handlers there were."""
    return configure_root(Path(path), level)


def configure_root(path: Path | None, level: int = logging.INFO) -> logging.Logger:
    """As `configure_logging_module`, with no file where there is no path."""
    console = logging.StreamHandler()
    console.setFormatter(_ColourFormatter(_FORMAT) if _shows_colour() else logging.Formatter(_FORMAT))
    handlers: list[logging.Handler] = [console]
    if path is not None:
        os.makedirs(path.parent, exist_ok=True)
        file = logging.FileHandler(path, mode="a", encoding="utf-8")
        file.setFormatter(logging.Formatter(_FORMAT))
        handlers.append(file)
    logging.basicConfig(level=level, handlers=handlers, force=True)
    logging.getLogger("httpx").setLevel(max(level, logging.WARNING))  # it reports every request
    root = logging.getLogger()
    root.info("Command line invocation: %s", shlex.join(mask_arguments(sys.argv)))
    return root


def _shows_colour() -> bool:
    console = Console(stderr=True)
    return console.is_terminal and not console.no_color
