"""Read the chains of records of a home's stores, check them, and hold them against what the stores say now."""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from constellation.audit import verify
from turnkeeper.config.home import Home
from turnkeeper.config.settings import load_settings
from turnkeeper.storage import handover, nodes, sqlite_files
from turnkeeper.storage.chain import digest, public_key
from turnkeeper.storage.keys import AUDIT, KeyFile

Line = dict[str, Any]
_RECORDS = "SELECT number, at_us, body, content_hash, hash FROM audit ORDER BY number"


class Table(NamedTuple):
    """What records tell of one table.

    Attributes:
        kind: of the records.
        key: the field of a record that names a row.
        query: the rows that have a record: their names; their numbers, which grow; when they ended, in microseconds;
            then what the fields of a record say.
        fields: of a record, in the order of the query.
        noun: what a row is called.
    """

    kind: str
    key: str
    query: str
    fields: tuple[str, ...]
    noun: str


_ENTRIES = "outcome, reason, attempt, turn_id FROM fires WHERE NOT is_open AND outcome <> 'pruned' AND fire_id IS"
TABLES = {
    "task-runner": (
        Table(
            "fire",
            "fire",
            f"SELECT fire_id, entry_id, coalesce(ended_us, 0), {_ENTRIES} NOT NULL",
            ("outcome", "reason_hash", "attempt", "turn"),
            "the outcome of fire",
        ),
        Table(
            "skip",
            "entry",
            # A run of skipped times grows, and an entry that waited for its fire may end as one.
            "SELECT entry_id, 0, 0 FROM fires WHERE NOT is_open AND outcome <> 'pruned' AND fire_id IS NULL",
            (),
            "the entry of the ledger",
        ),
    ),
    "agent-runtime": (
        Table(
            "turn",
            "turn",
            "SELECT turn_id, number, ended_at_us, status, fire_id, task_id, category, grant_json FROM turns"
            " WHERE status IN ('succeeded', 'silent', 'failed', 'cancelled')",
            ("outcome", "fire", "task", "category", "category_hash"),
            "the outcome of turn",
        ),
        Table(
            "decision",
            "approval",
            "SELECT interrupt_id, number, resolved_at_us, decision, args_hash, tool, decided_by, edited_json"
            " FROM interrupts WHERE decision <> ''",
            ("decision", "args_hash", "tool", "by", "edited_hash"),
            "the decision about approval",
        ),
        Table(
            "exception",
            "exception",
            "SELECT number, number, coalesce(ended_at_us, given_at_us), task_id, tool, args_hash, any_value_json,"
            " category_json, given_by, ended_why, ended_by FROM exceptions",
            ("task", "tool", "args_hash", "any_value_hash", "category_hash", "by", "ended_hash", "ended_by"),
            "the standing exception",
        ),
        Table(
            "candidate",
            "candidate",
            "SELECT candidate_id, decided_at_us, decided_at_us, lifecycle, decided_by, body"
            " FROM candidates WHERE lifecycle <> 'candidate'",
            ("verdict", "by", "text_hash"),
            "the decision about candidate",
        ),
    ),
}


def export(home: Home) -> Iterator[Line]:
    """Yield the signed heads, then every record of each store, as :mod:`.verify` reads them. Raises Corrupt."""
    yield from _heads(home.audit_heads)  # first: a head that is signed meanwhile is of a record that is read then
    with _stores(home) as stores:
        for store, snapshot in stores.items():
            yield from ({"record": record} for record in records(snapshot, store))


def examine(home: Home) -> verify.Outcome:
    """Check both chains, and that the stores tell the same as their records. Raises Corrupt.

    Machines that share a database sign by turns: there every key is taken, and those that signed are listed. The heads
    that this machine has signed lie outside the database, so a chain that was written anew does not fit them.
    """
    trusted = [public_key(key) for key in KeyFile(home, AUDIT).read()]
    outcome = verify.check(export(home), () if load_settings(home).store.is_shared else trusted)
    faults = list(outcome.faults)
    with _stores(home) as stores:
        for store, snapshot in stores.items():
            chain = outcome.chains.get(store)
            if chain is None:
                faults.append(f"{store}: its chain has no record")
            elif trusted and not chain.signed:
                faults.append(f"{store}: no record is signed")
            faults += [f"{store}: {fault}" for fault in differences(snapshot, store)]
    return outcome._replace(faults=faults)


def _heads(path: Path) -> Iterator[Line]:
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            head = json.loads(line)
            if {"store", "through", "hash", "public", "signature"} <= head.keys() and isinstance(head["through"], int):
                yield {"head": head}
                continue
        except (ValueError, AttributeError):
            pass
        if line and number < len(lines):  # a crash may leave half a line, which the next one ends
            yield {"head": {"store": "heads", "through": number, "hash": "", "public": "", "signature": ""}}


@contextmanager
def _stores(home: Home) -> Iterator[dict[str, Any]]:
    """Open the stores that have records, by the processes that own them."""
    paths = {"task-runner": home.schedules_db, "agent-runtime": home.agent_db}
    if url := load_settings(home).store.shared_url:
        schemas = {"task-runner": nodes.SCHEMA, "agent-runtime": handover.SCHEMA}
        with ExitStack() as opened:
            yield {
                store: opened.enter_context(closing(handover.SharedSnapshot(url, schema)))
                for store, schema in schemas.items()
            }
        return
    with ExitStack() as opened:
        found = {
            store: opened.enter_context(sqlite_files.reading(path)) for store, path in paths.items() if path.exists()
        }
        yield {store: snapshot for store, snapshot in found.items() if sqlite_files.has_table(snapshot, "audit")}


def records(snapshot: Any, store: str) -> Iterator[Line]:
    """Yield the records of a store, in order; `snapshot` runs SQL."""
    for number, at_us, body, content, found in snapshot.execute(_RECORDS):
        hashes = {"content_hash": _hexadecimal(content), "hash": _hexadecimal(found)}
        yield {"store": store, "number": number, "at_us": at_us, "body": body, **hashes}


def _hexadecimal(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else ""


def differences(snapshot: Any, store: str) -> Iterator[str]:
    """Say where the tables tell something else than the records."""
    told: dict[tuple[str, Any], Line] = {}
    begun: Line = {}
    pruned_us, withdrawn, erased = 0, set[Any](), set[tuple[str, Any, str]]()
    for record in records(snapshot, store):
        fact = _fact(record)
        kind = fact.get("kind")
        erased |= {(of, name, field) for of, name, field in fact.get("fields", ())}
        if kind == "begin":
            begun = fact
        elif kind == "pruned":
            pruned_us = max(pruned_us, fact.get("before_us", 0))
        elif kind == "withdrawn":
            withdrawn.add(fact.get("entry"))
        for table in TABLES[store]:
            if kind == table.kind:
                told[kind, fact.get(table.key)] = fact
    for table in TABLES[store]:
        yield from _of_table(snapshot, table, told, begun, pruned_us, erased)
    for (kind, name), fact in told.items():
        gone = _is_pruned(fact, pruned_us) or (kind == "skip" and name in withdrawn)
        if not gone and not (kind == "decision" and not fact.get("decision")):
            yield f"what record tells of {kind} {name} is gone from the store"


def _is_pruned(fact: Line, pruned_us: int) -> bool:
    """Tell whether what a record tells of is older than what was pruned last."""
    if fact["kind"] in {"turn", "decision"}:
        return bool(fact["at_us"] < pruned_us)
    return fact["kind"] in {"fire", "skip"} and bool(fact.get("last", 0) < pruned_us)


def _fact(record: Mapping[str, Any]) -> Line:
    try:
        fact = json.loads(record["body"] or "{}")
    except ValueError:
        return {}
    return fact | {"at_us": record["at_us"]} if isinstance(fact, dict) else {}


def _of_table(
    snapshot: Any,
    table: Table,
    told: dict[tuple[str, Any], Line],
    begun: Line,
    pruned_us: int,
    erased: set[tuple[str, Any, str]],
) -> Iterator[str]:
    """Compare the rows of a table, but for texts on record as erased; take what was compared out of `told`."""
    for name, number, ended_us, *values in snapshot.execute(table.query):
        fact = told.pop((table.kind, name), None)
        if fact is None:
            if ended_us >= pruned_us and number > begun.get(table.kind, 0):
                yield f"{table.noun} {name} is in the store, and no record tells it"
            continue
        for field, value in zip(table.fields, values, strict=True):
            now = digest(value) if field.endswith("_hash") and field != "args_hash" else value
            if fact.get(field) != now and (table.kind, name, field) not in erased:
                yield f"{table.noun} {name} was changed: {field.removesuffix('_hash')} is not as recorded"
