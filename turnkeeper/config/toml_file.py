"""Reading TOML that a person wrote, from plain files of limited size, with the line of each mistake."""

import json
import os
import re
import stat
import tomllib
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from turnkeeper.config.json_text import is_deeper
from turnkeeper.errors import InvalidInput, NotFound, machine_trouble

if TYPE_CHECKING:
    from pydantic import BaseModel
LARGEST_BYTES = 1 << 20
DEEPEST = 16
_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*=""")
Location = tuple[str | int, ...]
M = TypeVar("M", bound="BaseModel")


class TomlFile:
    """One parsed file.

    Attributes:
        path: the path of the file, for errors.
    """

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self._text = text
        try:
            self.data: dict[str, Any] = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # a number with thousands of digits causes a different error
            twice = re.search(r"Cannot declare \((.*?),?\) twice", str(error))
            table = "" if twice is None else twice[1].replace("'", "").replace(", ", ".")
            hint = f"[{table}] occurs twice: write all its keys under the first one" if table else ""
            raise InvalidInput(f"not valid TOML: {error}", where=str(path), hint=hint) from error
        if is_deeper(self.data, DEEPEST):
            raise InvalidInput(f"nested deeper than {DEEPEST} levels", where=str(path))

    def validate(self, model: type[M]) -> M:
        """Validate the whole file as `model`. Raises InvalidInput with the file, line and key of a mistake."""
        return self.validate_at(model, self.data, ())

    def validate_at(self, model: type[M], data: object, at: Location) -> M:
        """Validate the part `data`, found at `at`, as `model`. Raises InvalidInput with file, line and key."""
        try:
            return model.model_validate(data)
        except _invalid() as error:
            raise self._mistake(error.errors(include_url=False)[0], at) from error

    def mistakes(self, model: "type[BaseModel]") -> list[InvalidInput]:
        """Return every mistake in the file as `model`, ordered by line, each with its file, line and key."""
        try:
            model.model_validate(self.data)
        except _invalid() as error:
            found = sorted(error.errors(include_url=False), key=lambda one: line_of(self._text, one["loc"]))
            return [self._mistake(one, ()) for one in found]
        return []

    def _mistake(self, one: Any, at: Location) -> InvalidInput:
        return InvalidInput(reason(one["type"], one["msg"]), where=self.where((*at, *one["loc"])))

    def where(self, at: Location) -> str:
        """Return `file:line: key` for a position in the file. If its line is unknown, use the nearest one around it."""
        key = ".".join(str(part) for part in at if isinstance(part, str))
        return f"{self.path}:{line_of(self._text, at)}: {key}"


def _invalid() -> Any:
    """Return Pydantic's error type; it is imported only after a model was validated."""
    return import_module("pydantic").ValidationError


def read_toml(path: Path) -> TomlFile:
    """Read a TOML file of at most 1 MiB that is a plain file in UTF-8.

    Raises:
        NotFound: the file does not exist.
        InvalidInput: the file is a link or a pipe, is too large, or is not TOML in UTF-8.
    """
    return TomlFile(path, read_text(path))


def read_text(path: Path, largest: int = LARGEST_BYTES) -> str:
    """Read a plain UTF-8 file of at most `largest` bytes. Raises NotFound, InvalidInput or MachineTrouble."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise NotFound("no such file", where=str(path)) from error
    except OSError as error:
        raise machine_trouble(error) or InvalidInput(f"cannot be read: {error.strerror}", where=str(path)) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InvalidInput("is not a plain file", where=str(path))
    with os.fdopen(descriptor, "rb") as file:
        raw = file.read(largest + 1)
    if len(raw) > largest:
        raise InvalidInput(f"is larger than {largest} bytes", where=str(path))
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"is not UTF-8 at byte {error.start}", where=str(path)) from error


def with_key(text: str, table: str, key: str, value: str | bool | Sequence[str]) -> str:
    r"""Return TOML with `key` of `[table]` set in its line, in the place of its commented default, or in a new line.

    If `table` is empty, set a key outside all tables.

    >>> with_key('[model]\n# name = "offline"\n[memory]\n', "model", "name", "openai:gpt-5")
    '[model]\nname = "openai:gpt-5"\n[memory]\n'
    """
    lines, wanted = text.splitlines(), f"{key} = {json.dumps(value, ensure_ascii=False)}"
    begin, end = _lines_of(lines, table)
    if begin is None:
        return "\n".join([*lines, *([""] if lines else []), f"[{table}]", wanted, ""])
    stated = [number for mark in ("", r"#\s*") for number in range(begin + 1, end)
              if re.match(rf"\s*{mark}{re.escape(key)}\s*=", lines[number])]  # fmt: skip
    if stated:
        lines[stated[0]] = wanted
    else:
        lines.insert(begin + 1, wanted)
    return "\n".join([*lines, ""])


def _lines_of(lines: Sequence[str], table: str) -> tuple[int | None, int]:
    """Return the index of a table's header line, -1 for the whole file or None if missing, and the table's end."""
    headers = [number for number, line in enumerate(lines) if _HEADER.match(line)]
    named = (number for number in headers if (_HEADER.match(lines[number]) or [""] * 3)[2] == table)
    begin = next(named, None) if table else -1
    return begin, next((number for number in headers if begin is not None and number > begin), len(lines))


def with_items(text: str, table: str, key: str, items: Sequence[str], before: Sequence[str]) -> str:
    r"""Return TOML with `items` added to the list `key` of `[table]`. If there is no such list, begin with `before`.

    Remove comment lines that contain one of the items. Keep the other lines.

    >>> with_items('[a]\nb = ["x"]  # mine\n', "a", "b", ["y"], [])
    '[a]\nb = ["x", "y"]  # mine\n'
    """
    lines = text.splitlines()
    begin, end = _lines_of(lines, table)
    said = "" if begin is None else "\n".join(lines[begin + 1 : end])
    opened = re.search(rf"^\s*{re.escape(key)}\s*=\s*\[", said, re.MULTILINE)
    if begin is None or opened is None:
        return with_key(text, table, key, [*before, *items])
    fresh = [json.dumps(one, ensure_ascii=False) for one in items]
    behind = rf"\n[ \t]*#[ \t]*(?:{'|'.join(map(re.escape, fresh))}),?[ \t]*(?=\n)"
    said = said[: opened.end()] + re.sub(behind, "", said[opened.end() :])
    last, close = _ends_of_list(said, opened.end())
    comma = "" if said[last - 1] in ",[" else ","
    if "\n" in said[opened.end() : close]:
        space = said[last:close].rstrip(" \t")
        more = (space if space.endswith("\n") else f"{space}\n") + "".join(f"    {one},\n" for one in fresh)
    else:
        more = " " * (said[last - 1] != "[") + ", ".join(fresh)
    return "\n".join([*lines[: begin + 1], f"{said[:last]}{comma}{more}{said[close:]}", *lines[end:], ""])


_TOKEN = re.compile(r"""\"(?:\\.|[^"\\])*\"|'[^']*'|#[^\n]*|\s+|.""")


def _ends_of_list(text: str, begin: int) -> tuple[int, int]:
    """Return the end of a list's last item or comma, and the position of `]`. The list opens before `begin`."""
    last = begin
    for token in _TOKEN.finditer(text, begin):
        if token[0] == "]":
            return last, token.start()
        if not token[0].isspace() and not token[0].startswith("#"):
            last = token.end()
    return last, len(text)


def line_of(text: str, at: Location) -> int:
    r"""Return the line, from 1, that defines the value at `at`, or else the nearest table around it.

    >>> line_of("a = 1\n[[task]]\nname = 'x'\n[[task]]\nname = 'y'\n", ("task", 1, "name"))
    5
    """
    best, longest, counts = 1, 0, dict[tuple[str, ...], int]()
    table: Location = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            names = tuple(part.strip().strip("\"'") for part in header[2].split("."))
            counts[names] = counts.get(names, -1) + (header[1] == "[[")
            table = (*names, counts[names]) if header[1] == "[[" else names
            here = table
        elif key := _KEY.match(line):
            here = (*table, *(part.strip().strip("\"'") for part in key[1].split(".")))
        else:
            continue
        if len(here) > longest and tuple(here) == tuple(at[: len(here)]):
            best, longest = number, len(here)
    return best


def reason(kind: str, message: str) -> str:
    """Return a validation error in words; a pattern's comment describes a valid value."""
    plain = {"extra_forbidden": "unknown key", "missing": "required key is missing"}
    plain |= {"model_type": "unknown key, or not a table"}
    said = re.sub(r".*\$ # (.+)'$", r"should be \1", message.removeprefix("Value error, "))
    return plain.get(kind, said[:1].lower() + said[1:])


def said_in(path: Path, section: str) -> Any:
    """Return a section of a file, or an empty one if it is missing. Do not validate it, because that takes long."""
    try:
        return read_toml(path).data.get(section, {})
    except NotFound:
        return {}


def shared_url_in(path: Path) -> str:
    """Return the shared store in the settings, without validation. Empty if there is none."""
    said = said_in(path, "store")
    url = said.get("url", "sqlite") if isinstance(said, dict) else ""
    return "" if url == "sqlite" else str(url)
