"""Rendering rows and records, for people and for scripts.

Options that many commands share.
"""

import json
import re
import sys
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from turnkeeper.console.grid import Grid


class Output(StrEnum):
    """How a command prints its data."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    JSONL = "jsonl"
    NAME = "name"


OutputOption = Annotated[
    Output,
    typer.Option("-o", "--output", help="table and wide are for people; json, jsonl and name are stable, for scripts."),
]
LimitOption = Annotated[int, typer.Option("-n", "--limit", min=1, help="Show at most so many.")]


Row = Mapping[str, Any]
_LAYOUT = {"\n", "\t"}
# Bidirectional controls are of category Cf, as are harmless joiners: these are the ones that reorder text.
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_ACTIVE = re.compile(f"[\x7f-\x9f\u2028\u2029\ud800-\udfff{''.join(sorted(_BIDI))}]")


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        header: its heading, in capitals.
        value: what it shows of a row.
        wide: shown only by `-o wide`.
        right: aligned right, for numbers.
    """

    header: str
    value: Callable[[Row], str]
    wide: bool = False
    right: bool = False


def show_rows(
    rows: Sequence[Row], columns: Sequence[Column], output: Output, *, name_key: str, footer: str = ""
) -> None:
    """Print a list: JSON as an array, jsonl a line each, names, or a table with its footer on stderr."""
    if output is Output.JSON:
        _write(as_json(list(rows), indent=2))
    elif output is Output.JSONL:
        for row in rows:
            _write(as_json(row))
    elif output is Output.NAME:
        for row in rows:
            _write(plain(str(row[name_key])))
    else:
        shown = [column for column in columns if output is Output.WIDE or not column.wide]
        if rows:
            _show_table(rows, shown, fit=output is Output.TABLE)
        if footer:
            note(footer)


def _show_table(rows: Sequence[Row], columns: Sequence[Column], *, fit: bool) -> None:
    cells = [[plain(column.value(row)).replace("\n", " ") for column in columns] for row in rows]
    grid = Grid(headers=[column.header for column in columns], cells=cells, right=[column.right for column in columns])
    screen = console()
    lines, hidden = grid.lines(screen.width if fit and sys.stdout.isatty() else None)
    screen.print(Text(next(lines), style="bold"), soft_wrap=True)
    for line in lines:
        _write(line)
    if hidden:
        note(f"no room for {', '.join(hidden)}: -o wide shows all")


def show_record(record: Row, output: Output, *, name_key: str, lines: Sequence[tuple[str, str]]) -> None:
    """Print one thing: JSON, its name, or aligned `key: value` lines."""
    if output in {Output.JSON, Output.JSONL}:
        _write(as_json(record, indent=2 if output is Output.JSON else None))
    elif output is Output.NAME:
        _write(plain(str(record[name_key])))
    else:
        width = max((len(key) for key, _ in lines), default=0) + 1
        for key, value in lines:
            body = plain(value).replace("\n", "\n" + " " * (width + 1))
            console().print(Text.assemble((f"{key + ':':<{width}} ", "bold"), body), soft_wrap=True)


def plain(text: str) -> str:
    r"""Return text that a terminal shows and never obeys: control and reordering characters are written out.

    >>> plain("a\x1b[31mb\u202ec")
    'a\\x1b[31mb\\u202ec'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_shown, text))


def as_json(value: Any, *, indent: int | None = None) -> str:
    r"""Return a value as JSON that a terminal, too, shows and never obeys: what could act on it is escaped.

    >>> as_json({"said": "\x9b31m \u202e ü"})
    '{"said": "\\u009b31m \\u202e ü"}'
    """
    text = json.dumps(value, indent=indent, ensure_ascii=False)  # which escapes what stands before the blank
    return text if text.isascii() and "\x7f" not in text else _ACTIVE.sub(lambda one: f"\\u{ord(one[0]):04x}", text)


def console() -> Console:
    """Return the console for stdout; it honours NO_COLOR, and is never narrower than its data when piped."""
    width = None if sys.stdout.isatty() else 10_000
    return Console(file=sys.stdout, highlight=False, markup=False, emoji=False, width=width, soft_wrap=False)


def note(text: str) -> None:
    """Say something to the person, on stderr."""
    sys.stdout.flush()
    print(plain(text), file=sys.stderr)  # noqa: T201


def complain(line: str, detail: str = "") -> None:
    """Print an error: one line, then the detail (a caret under the bad field) if there is any."""
    console_ = Console(file=sys.stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)
    console_.print(Text.assemble(("error: ", "bold red"), plain(line).replace("\n", " ")), soft_wrap=True)
    if detail:
        console_.print(Text(plain(detail)), soft_wrap=True)


def status(message: str) -> AbstractContextManager[object]:
    """Show a spinner on stderr while a block runs, if there is a terminal to show it on."""
    if not sys.stderr.isatty():
        return nullcontext()
    return Console(file=sys.stderr).status(message)


def _shown(character: str) -> str:
    if character in _LAYOUT:
        return character
    if unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"} or character in _BIDI:
        code = ord(character)
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    return character


def _write(text: str) -> None:
    print(text)  # noqa: T201
