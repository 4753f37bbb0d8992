"""Tables from rows, columns and dictionaries."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.utils.jsonable import text_of
from tinker_cookbook.utils.logtree.content import add
from tinker_cookbook.utils.logtree.node import Node
from tinker_cookbook.utils.logtree.tree import current_position


def table(obj: Any, *, caption: str | None = None) -> None:
    """A DataFrame, a list of dictionaries (missing keys leave a gap) or a list of rows."""
    if current_position() is None:
        return
    columns, rows = _columns_and_rows(obj)
    _add_table(columns, rows, caption)


def table_from_dict(
    data: Mapping[Any, Any],
    *,
    caption: str | None = None,
    key_header: str = "key",
    value_header: str = "value",
    sort_by: str | None = None,
) -> None:
    """A row per entry; `sort_by` is "key" or "value"."""
    if current_position() is None:
        return
    if sort_by not in (None, "key", "value"):
        raise ConfigurationError(f'sort_by is "key", "value" or None, not {sort_by!r}')
    items = list(data.items())
    if sort_by is not None:
        items = _sorted(items, 0 if sort_by == "key" else 1)
    _add_table([key_header, value_header], items, caption)


def table_from_dict_of_lists(
    columns: Mapping[str, Sequence[Any]],
    *,
    caption: str | None = None,
    order: Sequence[str] | None = None,
) -> None:
    """A column per entry; those named in `order` come first."""
    if current_position() is None:
        return
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ConfigurationError(f"columns of one table need one length; these have {lengths}")
    unknown = [name for name in order or () if name not in columns]
    if unknown:
        raise ConfigurationError(f"order names {unknown}, and the columns are {list(columns)}")
    names = list(dict.fromkeys([*(order or ()), *columns]))
    _add_table(names, zip(*(columns[name] for name in names), strict=True), caption)


def _columns_and_rows(obj: Any) -> tuple[list[Any] | None, Iterable[Iterable[Any]]]:
    if isinstance(obj, Mapping):
        raise TypeError(
            "table() takes rows; for a dictionary use table_from_dict or table_from_dict_of_lists"
        )
    if hasattr(obj, "columns") and hasattr(obj, "itertuples"):  # a DataFrame, without importing pandas
        return list(obj.columns), obj.itertuples(index=False, name=None)
    rows = list(obj)
    if rows and all(isinstance(row, Mapping) for row in rows):
        columns = list(dict.fromkeys(key for row in rows for key in row))
        return columns, ([row.get(column, "") for column in columns] for row in rows)
    if all(isinstance(row, Sequence) and not isinstance(row, str | bytes) for row in rows):
        return None, rows
    kinds = sorted({type(row).__name__ for row in rows})
    raise TypeError(
        f"table() takes a DataFrame, a list of dictionaries or a list of lists; the rows are {kinds}"
    )


def _sorted(items: list[tuple[Any, Any]], index: int) -> list[tuple[Any, Any]]:
    try:
        return sorted(items, key=lambda item: item[index])
    except TypeError:  # of several types: their text can be compared
        return sorted(items, key=lambda item: text_of(item[index]))


def _add_table(columns: list[Any] | None, rows: Iterable[Iterable[Any]], caption: str | None) -> None:
    element = Node("table", {"class": "lt-table"})
    if caption is not None:
        element.children.append(Node("caption", {}, [caption]))
    body: list[Node | str] = [Node("tr", {}, [_cell("td", value) for value in row]) for row in rows]
    if columns is not None:
        numeric = _numeric_columns(body, len(columns))
        cells: list[Node | str] = [
            Node("th", {"class": "lt-num"} if index in numeric else {}, [text_of(name)])
            for index, name in enumerate(columns)
        ]
        element.children.append(Node("thead", {}, [Node("tr", {}, cells)]))
    if not body:
        body = [Node("tr", {}, [Node("td", {"class": "lt-empty"}, ["no rows"])])]
    element.children.append(Node("tbody", {}, body))
    add(Node("div", {"class": "lt-table-wrap"}, [element]))


def _cell(tag: str, value: Any) -> Node:
    if isinstance(value, bool) or not _is_number(value):
        return Node(tag, {}, [text_of(value)])
    text = text_of(value)
    short = f"{value:.5g}" if isinstance(value, float) else text
    attrs = {"class": "lt-num"} if short == text else {"class": "lt-num", "title": text}
    return Node(tag, attrs, [short])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or (hasattr(value, "dtype") and getattr(value, "ndim", 1) == 0)


def _numeric_columns(rows: list[Node | str], count: int) -> set[int]:
    """Their headings stand above the numbers, at the right."""
    numeric = set(range(count)) if rows else set()
    for row in rows:
        if isinstance(row, Node):
            cells = enumerate(row.children[:count])
            numeric -= {i for i, cell in cells if isinstance(cell, Node) and "class" not in cell.attrs}
    return numeric
