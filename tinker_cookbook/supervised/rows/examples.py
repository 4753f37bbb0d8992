"""Rows that have been checked, as examples: conversations or text, still read one at a time."""

import logging
from array import array
from collections.abc import Sequence
from typing import Literal

from tqdm import tqdm

from tinker_cookbook.exceptions import DataFormatError, DataValidationError, RendererError
from tinker_cookbook.renderers import supervised
from tinker_cookbook.renderers.messages import TrainOnWhat
from tinker_cookbook.supervised.rows.formats import Example, RowFormat, detect
from tinker_cookbook.supervised.rows.source import JoinedRows, Row, Rows

logger = logging.getLogger(__name__)

OnBadRow = Literal["stop", "skip"]

_DETECT_FROM = 100  # rows at the beginning of each file
_NAMED = 10  # bad rows that are reported one by one; the rest is counted
_REPORT_EVERY = 250_000  # rows, where there is no terminal for a bar
_BAR_AFTER_SECONDS = 3


class Examples:
    """Every row has been parsed once, and none tokenised: what is wrong with one is known before training starts.

    `skipped` counts the rows that were left out.
    """

    def __init__(
        self,
        rows: Rows,
        *,
        train_on_what: TrainOnWhat,
        columns: Sequence[str] = (),
        on_bad_row: OnBadRow = "stop",
    ):
        self._rows = JoinedRows(rows.name, rows.parts())
        self._formats = [_detect_format(part, columns) for part in rows.parts()]
        self._what = train_on_what
        self._on_bad_row = on_bad_row
        self.skipped = 0
        self._kept = array("q")
        self._check_all()

    @property
    def name(self) -> str:
        return self._rows.name

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, index: int) -> Example:
        return self._example(self._kept[index])

    def where(self, index: int) -> str:
        return self._rows.where(self._kept[index])

    def _example(self, row: int) -> Example:
        part, at = self._rows.locate(row)
        example = self._formats[part].example(self._rows.parts()[part][at])
        check_trainable(example, self._what)
        return example

    # --- the pass over all rows ----------------------------------------------------------------------

    def _check_all(self) -> None:
        bar = tqdm(
            total=len(self._rows),
            desc=f"checking {self.name}",
            unit="row",
            delay=_BAR_AFTER_SECONDS,
            leave=False,
            disable=None,
        )
        with bar:
            for row in range(len(self._rows)):
                self._check(row)
                bar.update()
                if bar.disable and row and row % _REPORT_EVERY == 0:
                    logger.info("checked %d of %d rows of %s", row, len(self._rows), self.name)
        self._report()

    def _check(self, row: int) -> None:
        try:
            self._example(row)
        except DataFormatError as error:
            where = self._rows.where(row)
            if self._on_bad_row == "stop":
                raise DataFormatError(
                    f"{where}: {error}. Mend it, or leave such rows out with on_bad_row=skip"
                ) from error
            self.skipped += 1
            if self.skipped <= _NAMED:
                logger.warning("skipped %s: %s", where, error)
        else:
            self._kept.append(row)

    def _report(self) -> None:
        if self.skipped:
            more = f" (only the first {_NAMED} are named above)" if self.skipped > _NAMED else ""
            logger.warning("%s: skipped %d of %d rows%s", self.name, self.skipped, len(self._rows), more)
        if not self._kept:
            raise DataValidationError(
                f"none of the {len(self._rows)} rows of {self.name} can be trained on; the first is skipped because: "
                f"{self._first_reason()}"
            )

    def _first_reason(self) -> str:
        try:
            self._example(0)
        except DataFormatError as error:
            return str(error)
        raise AssertionError("a row that was skipped is wrong")


def _detect_format(rows: Rows, columns: Sequence[str]) -> RowFormat:
    sample = _readable(rows)
    row_format = detect(rows.name, sample, columns)
    ignored = row_format.ignored(name for row in sample for name in row)
    logger.info(
        "%s: %d rows of %s; ignored columns: %s",
        rows.name,
        len(rows),
        row_format,
        ", ".join(ignored) or "none",
    )
    return row_format


def _readable(rows: Rows) -> list[Row]:
    found: list[Row] = []
    first_error: DataFormatError | None = None
    for index in range(min(_DETECT_FROM, len(rows))):
        try:
            found.append(rows[index])
        except DataFormatError as error:  # reported, with its line, by the pass over all rows
            first_error = first_error or DataFormatError(f"{rows.where(index)}: {error}")
    if not found and first_error is not None:
        raise first_error
    return found


def check_trainable(example: Example, what: TrainOnWhat) -> None:
    """That there is something to learn. DataFormatError, with the reason alone."""
    if isinstance(example, str):
        return
    try:
        supervised.check_trainable(example, what)
    except RendererError as error:
        raise DataFormatError(str(error)) from error
    if any(supervised.output_is_trained(example, i, what) for i in range(len(example))):
        return
    if not any(message["role"] == "assistant" for message in example):
        raise DataFormatError("the conversation has no assistant message to learn")
    raise DataFormatError(f"no message is learned with train_on_what={what}")
