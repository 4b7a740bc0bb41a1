"""Commands that print lists: their columns and lines from short descriptions, and the options of all lists."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from typing import Any, NamedTuple

from turnkeeper import console
from turnkeeper.rpc.pages import page_of
from turnkeeper.times import parse_rfc3339

_ALL = {"total": 0, "next_cursor": ""}


class Listed(NamedTuple):
    """The rows that a command lists.

    Attributes:
        page: the daemon's answer with `total` and `next_cursor`; None if the footer says how many rows are shown.
        columns, key: replace the command's columns and key.
    """

    rows: Sequence[console.Row]
    footer: str = ""
    page: Any = None
    columns: Sequence[console.Column] = ()
    key: str = ""


def listing(
    columns: Sequence[console.Column],
    key: str,
    *,
    limit: int = 1000,
    watch: Sequence[str] | None = (),
    in_words: Callable[[console.Row], str] | None = None,
) -> Callable[[Callable[..., Listed]], Callable[..., None]]:
    """Return a decorator that makes a function a command with `--cursor`, `--limit`, `-o` and `--watch`.

    A function with `**page` passes the cursor and the limit to a daemon. For others, the decorator cuts the rows.

    Args:
        key: the field that names a row.
        limit: the default of `--limit`.
        watch: other names of `--watch`; None if the command has no such option.
        in_words: passed to `show_rows`.
    """

    def make(command: Callable[..., Listed]) -> Callable[..., None]:
        kinds = [one.kind for one in inspect.signature(command).parameters.values()]
        by_daemon = inspect.Parameter.VAR_KEYWORD in kinds

        @wraps(command)
        def show(*, cursor: str, limit: int, output: console.Output, **given: Any) -> None:
            cut: dict[str, Any] = {"cursor": cursor, "limit": limit}
            found = command(**given, **(cut if by_daemon else {}))
            rows, page = (found.rows, found.page) if by_daemon else page_of(found.rows, found.key or key, **cut)
            how: dict[str, Any] = {"name_key": found.key or key, "footer": found.footer, "in_words": in_words}
            console.show_page(rows, found.columns or columns, output, page=page or _ALL, **how)

        options = {
            "cursor": (console.CursorOption, ""),
            "limit": (console.LimitOption, limit),
            "output": (console.OutputOption, console.Output.TABLE),
        }
        listed = console.declared(show, command, options)
        return listed if watch is None else console.watched(listed, watch)

    return make


def shown(at: str | None) -> str:
    """Format an instant of a row for a person; `-` if there is none."""
    return console.when(parse_rfc3339(at)) if at else "-"


def lines_of(row: Mapping[str, Any], words: str, **given: str) -> list[tuple[str, str]]:
    r"""Return a row as labelled lines for `show_record`. Omit a line without a value.

    Args:
        row: the row. Its instants are formatted for people, and each item of its lists is on a separate line.
        words: the lines in order, each `label=key`, or only `key` if the label is the same; `_` means a space.
        given: values by label, which replace those of the row.

    >>> lines_of({"turn_id": "t-1", "note": "", "sources": ["a", "b"]}, "turn=turn_id note sources state", state="open")
    [('turn', 't-1'), ('sources', 'a\nb'), ('state', 'open')]
    """
    lines = []
    for word in words.split():
        label, _, key = word.partition("=")
        value = given[label] if label in given else row[key or label]
        if value and (key or label).endswith("_at"):
            value = shown(value)
        lines.append((label.replace("_", " "), "\n".join(value) if isinstance(value, list) else str(value or "")))
    return [line for line in lines if line[1]]


def columns(words: str, **cells: Callable[[Mapping[str, Any]], str]) -> tuple[console.Column, ...]:
    """Return the columns of a table, for `show_rows`.

    Args:
        words: the columns in order, each `HEADING=key`, or only `HEADING` if the key is its lower-case form; `_` means
            a space. `+` before a column: only in the wide output. `#` before a column: aligned right, for numbers. `~`
            before it: omitted first on a narrow terminal.
        cells: by key, functions that replace the row's value in a column.

    >>> [(one.header, one.value({"page_id": "garden", "tags": []})) for one in columns("PAGE=page_id +TAGS")]
    [('PAGE', 'garden'), ('TAGS', '-')]
    """
    found = []
    for word in words.split():
        heading, _, named = word.lstrip("+#~").partition("=")
        key, marks = named or heading.lower(), word[: len(word) - len(word.lstrip("+#~"))]
        cell = cells.get(key) or partial(_cell, key)
        found.append(
            console.Column(
                heading.replace("_", " "), cell, wide="+" in marks, right="#" in marks, rank=2 * ("~" in marks)
            )
        )
    return tuple(found)


def _cell(key: str, row: Mapping[str, Any]) -> str:
    value = row[key]
    if key == "at" or key.endswith("_at"):
        return shown(value)
    text = ", ".join(value) if isinstance(value, list) else str(value)
    return "-" if value is None or not text else text
