"""Erasing a person's texts from a home on which no process runs: find the texts, then overwrite them in place.

Every byte of the text becomes an asterisk, so that its container (JSON, a checkpoint, a frozen request, a line of a
trail) can still be read. Ids, names, times, counts and hashes stay. Before anything is overwritten, the chains record
which hashes no longer match, so that `turnkeeper audit verify` still passes.
"""

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from sqlalchemy import MetaData, create_engine

from turnkeeper.config.home import Home
from turnkeeper.constellation.supervisor.daemons import EVERY, SUPERVISOR
from turnkeeper.errors import Conflict, InvalidInput, NotFound
from turnkeeper.storage import chain, sqlite_files
from turnkeeper.storage.locking import ProcessLock

SHORTEST = 3  # the fewest characters of a search term
_SHORTEST_ELSEWHERE = 12  # the fewest characters of a turn's text that is also searched for outside that turn
_OWN = frozenset({"config.toml", ".env", "peers.toml", "categories", "tasks", "workspace"})  # the author wrote them
_LEFT = frozenset({"keys", "run"})
_WAITING = frozenset({"inbox", "claimed", "outbox", "taken"})
# Columns with texts of people, models or tools. All other columns contain names, ids, states and numbers.
TEXTS: Mapping[str, Collection[str]] = {
    "turns": (
        "prompt",
        "payload_json",
        "summary",
        "error",
        "answers_json",
        "context_json",
        "config_json",
        "input_json",
        "run_json",
    ),
    "messages": ("text", "tool_calls_json"),
    "interrupts": ("args_json", "question", "message", "edited_json", "once_only"),
    "exceptions": ("args_json", "any_value_json", "ended_why"),
    "turn_events": ("summary", "error"),
    "thread_records": ("metadata_json",),
    "bridged_events": ("data_json",),
    "effects": ("result_json",),
    "handoffs": ("text",),
    "cancels": ("reason",),
    "deliveries": ("body", "reason"),
    "memory": ("key", "text"),
    "revalidations": ("note",),
    "fires": ("reason",),
    "outbox": ("request",),
    "tasks": ("definition", "reason", "pacing"),
    "revisions": ("definition",),
    "triggers": ("event",),
    "checkpoints": ("checkpoint", "metadata"),
    "writes": ("value",),
}
PAGES: Mapping[str, Collection[str]] = {
    "pages": ("title", "body", "tags"),
    "page_versions": ("title", "body", "tags"),
    "candidates": ("title", "body", "tags", "note"),
    "deviations": ("says", "found", "source", "why", "note"),
    "attachments": ("name", "data"),
}
# The columns with a hash in a record: the record's kind, the column with the name of its row, and the field.
_HASHED = {
    ("fires", "reason"): ("fire", "fire_id", "reason_hash"),
    ("interrupts", "edited_json"): ("decision", "interrupt_id", "edited_hash"),
    ("interrupts", "args_json"): ("decision", "interrupt_id", "shown_hash"),
    ("interrupts", "question"): ("decision", "interrupt_id", "question_hash"),
    ("interrupts", "message"): ("decision", "interrupt_id", "message_hash"),
    ("exceptions", "any_value_json"): ("exception", "number", "any_value_hash"),
    ("exceptions", "ended_why"): ("exception", "number", "ended_hash"),
    ("candidates", "body"): ("candidate", "candidate_id", "text_hash"),
}
_EMPTY = dict.fromkeys(("args_json", "result_json", "data_json", "metadata_json"), "{}")


def _written(character: str) -> Iterator[bytes]:
    """Yield patterns for the forms of a character in a file: plain, or as an escape of JSON or of nested JSON."""
    yield (rb"\\*" if character in '"\\/' else b"") + re.escape(character.encode())
    if character in "\n\t\r\b\f":
        yield rb"\\+" + json.dumps(character)[2].encode()
    elif not " " <= character <= "~" or character in "<{":  # a file in a prompt contains no plain < and no {{
        units = character.encode("utf-16-be").hex()
        yield b"".join(rb"\\+u(?i:%s)" % units[at : at + 4].encode() for at in range(0, len(units), 4))


def pattern(text: str) -> "re.Pattern[bytes]":
    r"""Return a pattern that finds the text in any case and any JSON escaping.

    >>> print(pattern("Zoë").sub(b"*", rb'{"a": "ZO\u00cb", "b": "[\"zo\u00eb\"]"}').decode())
    {"a": "*", "b": "[\"*\"]"}
    """
    found = []
    for character in text:
        forms = (character, character.lower(), character.upper())  # a form can have several characters
        ways = dict.fromkeys(way for form in forms for way in _written(form if len(form) == 1 else character))
        found.append(b"(?:" + b"|".join(ways) + b")")
    return re.compile(b"".join(found))


@dataclass(frozen=True)
class Mask:
    """The texts to overwrite."""

    patterns: tuple["re.Pattern[bytes]", ...]

    def of_bytes(self, data: bytes) -> bytes | None:
        """Return the data with an asterisk for each byte of these texts. None if the data holds none of the texts."""
        masked = data
        for each in self.patterns:
            masked = each.sub(lambda found: b"*" * len(found[0]), masked)
        return None if masked == data else masked

    def of(self, value: str | bytes) -> str | bytes | None:
        if isinstance(value, bytes):
            return self.of_bytes(value)
        masked = self.of_bytes(value.encode("utf-8", "surrogatepass"))
        return None if masked is None else masked.decode("utf-8", "surrogatepass")


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The turns from which texts are erased.

    Attributes:
        turns: the ids of the turns.
        threads: the ids of threads that have no other turns; their checkpoints are deleted.
        texts: the texts of these turns.
    """

    turns: frozenset[str] = frozenset()
    threads: frozenset[str] = frozenset()
    texts: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Found:
    """The places to overwrite, and the obstacles.

    Attributes:
        counts: the number of places, by table or folder.
        stays: the places that are not overwritten, with the reason.
        blocked: the work that must end first.
        erased: the hashes that no longer match, by store: the kind, name and field of records.
    """

    counts: dict[str, int] = field(default_factory=dict)
    stays: set[str] = field(default_factory=set)
    blocked: set[str] = field(default_factory=set)
    erased: dict[str, list[tuple[str, Any, str]]] = field(default_factory=dict)

    def count(self, where: str) -> None:
        self.counts[where] = self.counts.get(where, 0) + 1


class Eraser:
    """The eraser of one home. No process can run on the home during the `with` block."""

    def __init__(self, home: Home, *, pages: bool) -> None:
        """Take the home. With `pages`, also erase from pages: history, proposals, deviations and attachments."""
        self._home, self._pages = home, pages
        self._held = ExitStack()
        stores = (home.schedules_db, home.agent_db, home.checkpoints_db, home.root / "state" / "delivery.db")
        self._stores = [path for path in stores if path.exists()]
        self._open_turns: frozenset[str] = frozenset()
        self._open_threads: frozenset[str] = frozenset()

    def __enter__(self) -> Self:
        """Prevent the start of processes. Raises Conflict if one is running."""
        with ExitStack() as held:
            for process in (SUPERVISOR, *EVERY):
                held.enter_context(ProcessLock(self._home, process.name))
            self._held = held.pop_all()
        unfinished = self._rows(
            "SELECT turn_id, thread_id FROM turns WHERE status IN ('running', 'interrupted', 'paused')"
        )
        self._open_turns = frozenset(turn for turn, _ in unfinished)
        self._open_threads = frozenset(thread for _, thread in unfinished)
        return self

    def __exit__(self, *_: object) -> None:
        """Let processes start again."""
        self._held.close()

    def _rows(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        if not self._home.agent_db.exists():
            return []
        with sqlite_files.reading(self._home.agent_db) as store:
            return [tuple(row) for row in store.execute(query, values)]

    def choose(self, column: str, value: str) -> Chosen:
        """Return the turns of a channel, thread or task, or one turn. Raises NotFound, or Conflict if one is open."""
        where = "? IN (task_name, task_id)" if column == "task" else f"{column} = ?"
        rows = self._rows(f"SELECT turn_id, thread_id FROM turns WHERE {where}", value)  # noqa: S608  one of four
        if not rows:
            raise NotFound(f"no turn of {value[:80]!r}", where=column, hint="see: turnkeeper turns list")
        turns = frozenset(turn for turn, _ in rows)
        if waits := sorted(turns & self._open_turns):
            raise Conflict(f"turn {waits[0]} is not over", where=column, hint="decide about it, or cancel it, first")
        others = {thread for turn, thread in self._rows("SELECT turn_id, thread_id FROM turns") if turn not in turns}
        texts = set(self.prompts(value)) if column == "task" else set[str]()
        with sqlite_files.reading(self._home.agent_db) as store:
            for cell in sqlite_files.cells(store):
                if cell.row.get("turn_id") in turns and cell.column in TEXTS.get(cell.table, ()):
                    texts.update(_texts(str(cell.value)))
        return Chosen(turns=turns, threads=frozenset(thread for _, thread in rows) - others, texts=frozenset(texts))

    def prompts(self, task: str) -> Iterator[str]:
        """Yield the prompts of a task, even of a deleted one."""
        with sqlite_files.reading(self._home.schedules_db) as store:
            query = "SELECT definition FROM tasks WHERE ? IN (name, id)"
            for (definition,) in store.execute(query, [task]):
                yield from _texts(str(json.loads(definition).get("prompt", "")))

    def find(self, mask: Mask, chosen: Chosen) -> Found:
        """Search the home. Change nothing."""
        found = Found()
        for path in self._stores:
            with sqlite_files.reading(path) as store:
                for cell in sqlite_files.cells(store):
                    self._judge(path, cell, mask, chosen, found)
        for path in _files(self._home):
            if mask.of_bytes(path.read_bytes()) is not None:
                self._judge_file(path.relative_to(self._home.root), found)
        return found

    def erase(self, mask: Mask, chosen: Chosen, found: Found, at: datetime) -> None:
        """Overwrite the found texts."""
        for path, store_name in ((self._home.schedules_db, "task-runner"), (self._home.agent_db, "agent-runtime")):
            fields = found.erased.get(path.name, [])
            if path.exists():
                said = {"kind": "erased", "places": sum(found.counts.values()), "fields": sorted(set(fields))}
                _append(path, store_name, at, [said])
        for path in self._stores:
            with sqlite_files.alone(path) as store:
                for cell in list(sqlite_files.cells(store)):
                    value = self._judge(path, cell, mask, chosen, Found())
                    if value is not None:
                        sqlite_files.overwrite(store, cell, value)
                if path == self._home.checkpoints_db:
                    for table in ("checkpoints", "writes"):
                        sqlite_files.remove(store, table, "thread_id", chosen.threads)
        for path in _files(self._home):
            data = path.read_bytes()
            masked = mask.of_bytes(data)
            if masked is not None and self._judge_file(path.relative_to(self._home.root), Found()):
                with path.open("r+b") as file:  # overwrites the same blocks of the disk if the file system allows it
                    file.write(masked)
                    file.flush()
                    os.fsync(file.fileno())

    def _judge(
        self, path: Path, cell: sqlite_files.Cell, mask: Mask, chosen: Chosen, found: Found
    ) -> str | bytes | None:
        """Return the new value of a cell, or None if the value stays."""
        texts = {**TEXTS, **PAGES} if self._pages else TEXTS
        is_text = cell.column in texts.get(cell.table, ())
        said_in = cell.row.get("turn_id") in chosen.turns and cell.table not in {"writes", *PAGES}
        if is_text and (said_in or (cell.table == "thread_records" and cell.row["thread_id"] in chosen.threads)):
            value: str | bytes | None = _EMPTY.get(cell.column, "") if cell.value else None
            value = None if value == cell.value else value
        else:
            value = mask.of(cell.value)
        if value is None:
            return None
        if not is_text:
            if cell.table != "audit" or cell.column == "body":
                found.stays.add(self._why(cell))
            return None
        if why := self._is_open(cell):
            found.blocked.add(why)
        if cell.table == "tasks" and cell.row["state"] != "deleted" and cell.column == "definition":
            found.stays.add(f"task {cell.row['name']}: its definition; edit or delete it")
            return None
        found.count(f"{path.name} {cell.table}")
        if (cell.table, cell.column) in _HASHED:
            kind, name, of = _HASHED[cell.table, cell.column]
            found.erased.setdefault(path.name, []).append((kind, cell.row[name], of))
        return value

    @staticmethod
    def _why(cell: sqlite_files.Cell) -> str:
        if cell.table in PAGES and cell.column in PAGES[cell.table]:
            return f"{cell.table}: give --pages"
        return f"names in {cell.table}.{cell.column}: a name is not text, and stays"

    def _is_open(self, cell: sqlite_files.Cell) -> str:
        row = cell.row
        if cell.table == "kept_messages":
            return "a message waits for its thread: decide what its thread waits for"
        if row.get("turn_id") in self._open_turns or (
            cell.table in {"checkpoints", "writes"} and row["thread_id"] in self._open_threads
        ):
            which = row.get("turn_id") or f"on thread {row['thread_id']}"
            return f"turn {which} is not over: decide about it, or cancel it"
        return ""

    @staticmethod
    def _judge_file(path: Path, found: Found) -> bool:
        if path.parts[0] in _OWN:
            found.stays.add(f"{path}: you wrote it; change it yourself")
            return False
        if path.parts[0] == "channels" and _WAITING & {*path.parts}:
            found.blocked.add(f"{path}: an envelope that waits; let it be read, or remove it")
        found.count(path.parts[0] if len(path.parts) > 1 else path.name)
        return True


def _texts(value: str) -> Iterator[str]:
    """Yield the texts in a value, which may be JSON. Leave out texts that are too short to search for elsewhere."""
    try:
        known = json.loads(value) if value[:1] in '[{"' else value
    except ValueError:
        known = value
    left = [known]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            left += one.values()
        elif isinstance(one, list):
            left += one
        elif isinstance(one, str) and len(one.strip()) >= _SHORTEST_ELSEWHERE:
            yield one.strip()


def _files(home: Home) -> Iterator[Path]:
    """Yield the files that may contain texts: all except stores, keys, sockets and locks."""
    for path in sorted(home.root.rglob("*")):
        inside = path.relative_to(home.root).parts
        own = path.parent == home.agent_db.parent and ".db" in path.name
        if path.is_file() and not path.is_symlink() and not own and not _LEFT & {*inside[:2]}:
            yield path


def mask_of(terms: Iterable[str], compiled: Callable[[str], "re.Pattern[bytes]"] = pattern) -> Mask:
    """Return the mask of these texts, longest first. Raises InvalidInput for text that is too short."""
    wanted = sorted(dict.fromkeys(terms), key=len, reverse=True)
    if short := [term for term in wanted if len(term.strip()) < SHORTEST]:
        what = f"{short[0]!r} is too short: at least {SHORTEST} characters"
        raise InvalidInput(what, where="--text", hint="too many places would be overwritten")
    return Mask(tuple(compiled(term) for term in wanted))


def holds(home: Home, mask: Mask) -> list[str]:
    """Return the files of the home that contain one of the texts as bytes."""
    return [
        str(path.relative_to(home.root))
        for path in sorted(home.root.rglob("*"))
        if path.is_file() and not path.is_symlink() and mask.of_bytes(path.read_bytes()) is not None
    ]


def _append(path: Path, store: str, at: datetime, facts: Iterable[dict[str, Any]]) -> None:
    """Append records to the chain in a store's file. No process may have the file open."""
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        chain.Chain(chain.table_of(MetaData()), store).append(connection, at, list(facts))
    engine.dispose()
