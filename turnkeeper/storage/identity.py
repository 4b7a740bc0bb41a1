"""The identity of a home's stores. No daemon starts on a missing, empty or foreign store, or on an older copy.

Each store has a random number in the header of its file, and a count of how often its process started. The home keeps
both in `state/store-made-<name>`. The signed heads of a store's records show how many records the store must contain.
After a kill, a damaged frame of the store's log shows that the commits behind the frame are lost. The event log names
some of them.

A store of an earlier version has no number until its process starts for the first time. Before that, rows in the other
stores show that the store was used.
"""

import json
import shutil
import sqlite3
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from turnkeeper.config.home import Home
from turnkeeper.entropy import Entropy
from turnkeeper.errors import Conflict, Corrupt, InvalidInput, MachineTrouble, meant
from turnkeeper.storage import sqlite_files
from turnkeeper.storage.chain import Chain, Fact, is_signed, signed_head
from turnkeeper.storage.damage import HINT, commits_behind_damage
from turnkeeper.storage.files import replace_whole
from turnkeeper.storage.keys import AUDIT, KeyFile
from turnkeeper.storage.locking import is_held

LOST = "lost"  # the kind of the record for a store that the author accepted despite a loss
_LOST_OPTION = "turnkeeper restore --lost"
_LARGEST_TAIL = 1 << 20  # bytes at the end of a file of signed heads or of events that are read
_WAIT_S = 10.0
_MOST_NAMED = 20


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """A kind of store in a home.

    Attributes:
        holds: the data that is lost with the store.
        process: the process whose records the store contains; empty if it contains none.
        traces: other stores, each with a query that finds a row if this store was used.
        told: an event written after a commit, the field of the event that has an id, and a query that finds the id.
    """

    holds: str
    process: str
    owner: str
    traces: tuple[tuple[str, str], ...]
    told: tuple[str, str, str] = ("", "", "")


_OF_FIRES, _OF_TURNS = "SELECT 1 FROM turns WHERE fire_id <> '' LIMIT 1", "SELECT 1 FROM turns LIMIT 1"
_KINDS = {
    "schedules.db": _Kind(
        holds="the tasks and the history of fires",
        process="task-runner",
        owner="task-runner",
        traces=(("agent.db", _OF_FIRES),),
        told=("fire.committed", "fire_id", "SELECT 1 FROM fires WHERE fire_id = ?"),
    ),
    "agent.db": _Kind(
        holds="the turns, the conversations, the approvals and the memory",
        process="agent-runtime",
        owner="agent-runtime",
        traces=(
            ("schedules.db", "SELECT 1 FROM fires WHERE turn_id <> '' LIMIT 1"),
            ("checkpoints.db", "SELECT 1 FROM checkpoints LIMIT 1"),
        ),
        told=("turn.started", "turn_id", "SELECT 1 FROM turns WHERE turn_id = ?"),
    ),
    "checkpoints.db": _Kind(
        holds="the state of every conversation, without which no approval that waits can continue its turn",
        process="",
        owner="agent-runtime",
        traces=(("agent.db", _OF_TURNS),),
    ),
}


@dataclass(frozen=True, kw_only=True)
class _Made:
    """The facts that a home knows about a store.

    Attributes:
        number: the store's own number; 0 while unknown.
        starts: the number of times that a process began to use the store.
        heads_from: the offset in the file of signed heads behind which the heads apply to the store.
        lost: the record that the next start writes when it accepts the store with its loss; None if there is none.
    """

    number: int = 0
    starts: int = 0
    heads_from: int = 0
    lost: Fact | None = None


def faults(home: Home) -> Iterator[Corrupt]:
    """Yield an error for each store of the home that prevents the start of the daemons. Change nothing."""
    for name, kind in _KINDS.items():
        fault = fault_of(home, home.run.parent / name, is_open=is_held(home, kind.owner))
        if fault and not is_held(home, kind.owner):
            yield fault


def require(home: Home, *paths: Path) -> None:
    """Raise Corrupt if a store is not the store that the home used last."""
    for path in paths:
        if fault := fault_of(home, path):
            raise fault


def numbers(home: Home) -> frozenset[int]:
    """Return the numbers of a home's stores. A copy of the home has the same numbers. Skip unreadable stores."""
    found = set()
    for name in _KINDS:
        with suppress(Corrupt, MachineTrouble):
            found.add(_read(home, home.run.parent / name).number)
    return frozenset(found - {0})


def fault_of(home: Home, path: Path, *, is_open: bool = False) -> Corrupt | None:
    """Return the error for a store that is missing, empty, incomplete, or from another home.

    Return None if the store is valid. Do not check the file for damage. Check the log of the store unless a process has
    the store open. Raises Corrupt if the home's note about the store cannot be read.
    """
    made, kind = _read(home, path), _KINDS[path.name]
    if made.lost is not None:
        return None
    head = _last_head(home.audit_heads, kind.process, made.heads_from)
    what = "is missing"
    if path.exists():
        try:
            with closing(sqlite_files.reader(path, _WAIT_S)) as store:
                has_tables = store.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is not None
                what = _strange(store, made, head) if has_tables else "is empty"
                if not is_open and what != "is empty":
                    what = "; ".join(filter(None, [_lost_commits(home, path, store), what]))
        except sqlite3.Error:
            return None  # another check reports this fault
    used = what not in {"is empty", "is missing"} or made.number or head or _has_traces(home, kind)
    if not (what and used):
        return None
    hint = f"{HINT}; if no backup has it, use it as it is, or a new one: {_LOST_OPTION} {path.name}"
    return Corrupt(f"{what}; it held {kind.holds}", where=str(path), hint=hint)


def _strange(store: sqlite3.Connection, made: _Made, head: Fact | None) -> str:
    """Return the difference between a store and the facts that the home knows about it. Empty if they agree."""
    (number,), (starts,) = (store.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version"))
    if made.number and number != made.number:
        return "is not the store of this home"
    if made.number and starts < made.starts:
        return f"is an older copy: it was used {starts} times, and the home's store {made.starts} times"
    if head is None:
        return ""
    found, last = None, 0
    if sqlite_files.has_table(store, "audit"):
        found = store.execute("SELECT hash FROM audit WHERE number = ?", [head["through"]]).fetchone()
        last = store.execute("SELECT coalesce(max(number), 0) FROM audit").fetchone()[0]
    if found is None:
        through, at = head["through"], head.get("at", "")
        return f"lacks its last records: it ends at record {last}, and was signed up to {through}, {at}"
    return "" if bytes(found[0]).hex() == head["hash"] else f"has another record {head['through']} than was signed"


def _lost_commits(home: Home, path: Path, store: sqlite3.Connection) -> str:
    """Describe the commits that a store lost to a damaged frame of its log, with ids from the events. Empty if none."""
    if (behind := commits_behind_damage(path)) is None:
        return ""
    event, field, query = _KINDS[path.name].told
    trails = sorted(home.logs.glob(f"events-{_KINDS[path.name].owner}-*.jsonl"))[-1:] if event else []
    ids = [line[field] for trail in trails for line in _lines(trail, 0) if line.get("event") == event]
    gone = [each for each in dict.fromkeys(ids) if not store.execute(query, [each]).fetchone()]
    if behind < 2 and not gone:  # a crash that cut a commit short looks the same
        return ""
    named = f", among them {', '.join(gone[-_MOST_NAMED:])}" if gone else ""
    return f"lost {max(behind, 1)} commits or more behind a damaged frame of {path.name}-wal{named}"


def _has_traces(home: Home, kind: _Kind) -> bool:
    """Return True if a row in another store shows that a store of this kind was used."""
    for sibling, query in kind.traces:
        path = home.run.parent / sibling
        with suppress(sqlite3.Error), ExitStack() as opened:
            store = opened.enter_context(closing(sqlite_files.reader(path, _WAIT_S))) if path.exists() else None
            if store and store.execute(query).fetchone():
                return True
    return False


def _last_head(path: Path, process: str, start: int) -> Fact | None:
    """Return the last signed head of a process's store after an offset in the file. None if there is none."""
    for head in reversed(_lines(path, start)) if process and path.exists() else ():
        with suppress(ValueError, KeyError, TypeError):
            signed = head["through"], bytes.fromhex(head["hash"]), bytes.fromhex(head["signature"])
            if head["store"] == process and is_signed(head["public"], process, *signed):
                return dict(head)
    return None


def _lines(path: Path, start: int) -> list[dict[str, Any]]:
    """Return the last objects in a file of JSON lines after an offset."""
    with path.open("rb") as file:
        end = file.seek(0, 2)
        file.seek(max(start, end - _LARGEST_TAIL) if start <= end else end)
        lines = file.read().split(b"\n")
    found = []
    for line in lines:
        with suppress(ValueError):
            found.append(json.loads(line))
    return [each for each in found if isinstance(each, dict)]


async def take(
    home: Home,
    *paths: Path,
    run: Callable[[Callable[[sa.Connection], Any]], Awaitable[Any]],
    chain: Chain,
    at: datetime,
    entropy: Entropy,
    starts: bool,
) -> None:
    """Record that a process uses the stores that it opened. Number new stores. With `starts`, count a start.

    If the author accepted a loss, record the loss in `chain` through `run`, in a transaction of the chain's store.
    """
    for path in paths:
        made = _read(home, path)
        if made.lost is not None:
            await run(partial(chain.append, at=at, facts=[made.lost]))
        if made.lost is not None or starts or not made.number:
            _number(home, path, made, (int(entropy.hex(8), 16) & 0x7FFFFFFF) or 1, starts=starts)


def _number(home: Home, path: Path, made: _Made, drawn: int, *, starts: bool) -> None:
    with closing(sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None)) as store:
        store.execute("BEGIN IMMEDIATE")
        held, count = (store.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))
        number = held if made.lost is None and held else drawn
        count = max(count, made.starts) + starts
        store.execute(f"PRAGMA application_id={number}")
        store.execute(f"PRAGMA user_version={count}")
        store.execute("COMMIT")
    _write(home, path, _Made(number=number, starts=count, heads_from=made.heads_from))


def accept(home: Home, name: str) -> str:
    """Let the next start use a store despite its fault, or a new store if the store is missing. Return the fault.

    Keep a copy of the store's log beside the store. The caller holds the locks of both processes. Raises InvalidInput,
    Corrupt, or Conflict if nothing is wrong with the store.
    """
    if name not in _KINDS:
        raise InvalidInput(f"the home has no store {name[:80]!r}", where="--lost", hint=meant(name, _KINDS))
    path, process = home.run.parent / name, _KINDS[name].process
    if (fault := fault_of(home, path)) is None:
        raise Conflict("is the store of this home, and is not known to lack anything", where=str(path))
    made, fact = _read(home, path), {"kind": LOST, "file": name, "why": fault.what}
    if head := _last_head(home.audit_heads, process, made.heads_from):
        signed = signed_head(f"{LOST} {process}", head["through"], head["hash"], KeyFile(home, AUDIT).read()[0])
        fact = {**signed, **fact}
    with suppress(FileNotFoundError):  # the next start drops frames that SQLite cannot read
        shutil.copyfile(path.with_name(f"{name}-wal"), path.with_name(f"{name}-wal.lost"))
    size = home.audit_heads.stat().st_size if home.audit_heads.exists() else 0
    _write(home, path, _Made(starts=made.starts, heads_from=size, lost=fact))
    return fault.what


def _read(home: Home, path: Path) -> _Made:
    note = home.store_made(path.name)
    try:
        says = json.loads(note.read_bytes())
        made = _Made(**{name: says[name] for name in ("number", "starts", "heads_from", "lost")})
        if all(isinstance(count, int) for count in (made.number, made.starts, made.heads_from)) and (
            made.lost is None or isinstance(made.lost, Mapping)
        ):
            return made
    except FileNotFoundError:
        return _Made()
    except OSError as error:
        raise MachineTrouble(f"cannot be read: {error.strerror}", where=str(note), hint="check its disk") from error
    except (ValueError, KeyError, TypeError):
        pass
    raise Corrupt("does not say which store the home has used", where=str(note), hint="restore it from a backup")


def _write(home: Home, path: Path, made: _Made) -> None:
    replace_whole(home.store_made(path.name), json.dumps({"v": 1, **asdict(made)}).encode())
