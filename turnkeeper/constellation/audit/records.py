"""Reads the chains of records of a home's stores, checks them, and compares them with the stores' present content."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from turnkeeper.config.home import Home
from turnkeeper.config.settings import load_settings
from turnkeeper.config.surfaces import required
from turnkeeper.constellation.audit import verify
from turnkeeper.storage import identity, sqlite_files
from turnkeeper.storage.chain import SCHEMAS, digest, public_key, read_seen
from turnkeeper.storage.keys import AUDIT, KeyFile

Line = dict[str, Any]
_RECORDS = "SELECT number, at_us, body, content_hash, hash FROM audit ORDER BY number"
_HAS_OWN = "SELECT to_regclass('audit_records') IS NOT NULL"
_OWN_RECORDS = "SELECT chain, number, at_us, body, content_hash, hash FROM audit_records ORDER BY chain, number"
_OWN_ENDS = "SELECT chain, node, number, hash, signature FROM audit_chains ORDER BY chain"
_SAME_TIME_US = 60_000_000  # the longest time between the records that two machines write of one event


class Table(NamedTuple):
    """The records of a table.

    Attributes:
        key: the field of a record that names a row.
        query: selects the recorded rows: the row's name; its number, which increases; its end time in microseconds;
            then the values of `fields`.
        fields: the fields of a record, in the order of the query.
        noun: the name of a row in messages.
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
            # Only the id is compared: the entry changes when more times are skipped, and an open entry can become a
            # skipped one.
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
            "SELECT interrupt_id, number, resolved_at_us, decision, args_hash, tool, decided_by, turn_id,"
            " missing_scope, edited_json, args_json, question, message FROM interrupts"
            " WHERE decision <> '' OR status = 'resolved'",
            (
                *("decision", "args_hash", "tool", "by", "turn", "missing_scope"),
                *("edited_hash", "shown_hash", "question_hash", "message_hash"),
            ),
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
    """Yield the signed heads, then every record of each store, in the form for :mod:`.verify`. Raises Corrupt."""
    yield from _heads(home.audit_heads)  # read the heads first, so that the later read contains the record of each head
    seen = [head for store in SCHEMAS for head in read_seen(home.audit_seen(store))]
    with _stores(home) as stores:
        if load_settings(home).store.is_shared:
            yield from ({"head": head} for head in seen)
        for store, snapshot in stores.items():
            yield from chains_of(snapshot, store)


def examine(home: Home, keys: Collection[str] = ()) -> verify.Outcome:
    """Check the chains, and that the stores match their records. Raises Corrupt.

    If machines share a store, each machine signs its own chain. Then `keys` and this home's key are trusted. Without
    `keys`, every key is accepted, and the signing keys are listed. This home stores the heads that it read from all
    chains, so a rewritten or truncated chain is detected.
    """
    is_shared = load_settings(home).store.is_shared
    own = {public_key(key) for key in KeyFile(home, AUDIT).read()}
    trusted = own | set(keys) if keys or not is_shared else ()
    outcome = verify.check(export(home), trusted)
    faults, notes = list(outcome.faults), list(outcome.notes)
    if outcome.keys and not trusted and not is_shared:
        faults.append(f"{KeyFile(home, AUDIT).path} is gone: the signatures cannot be checked")
    if not is_shared:
        faults += [str(fault) for fault in identity.faults(home)]
    with _stores(home) as stores:
        for store, snapshot in stores.items():
            chains = [chain for (of, _), chain in outcome.chains.items() if of == store]
            if not any(chain.number for chain in chains):
                faults.append(f"{store}: its chain has no record")
            elif own and not any(chain.signed for chain in chains):
                (notes if _is_new(snapshot, store) else faults).append(f"{store}: no record is signed")
            if not is_shared:
                gone = _heads_gone(home.audit_heads, snapshot, store)
                faults, notes = faults + gone[0], notes + gone[1]
            faults += [f"{store}: {fault}" for fault in differences(snapshot, store)]
    return outcome._replace(faults=faults, notes=notes)


def _is_new(snapshot: Any, store: str) -> bool:
    """Return True if the whole chain is from the last two minutes, because its process signs once a minute."""
    at_us = [fact["at_us"] for fact in map(_fact, records(snapshot, store)) if fact.get("kind") != "begin"]
    return not at_us or max(at_us) - min(at_us) <= 2 * _SAME_TIME_US


def _heads_gone(path: Path, snapshot: Any, store: str) -> tuple[list[str], list[str]]:
    """Return faults and notes about signed heads that are recorded in the chain and missing in the file.

    If the process crashes between both writes, one head may be missing in the file. A file without heads was removed.
    """
    told = {fact["signature"] for fact in map(_fact, records(snapshot, store)) if fact.get("kind") == "head"}
    gone = told - {line["head"]["signature"] for line in _heads(path)}
    if not gone:
        return [], []
    said = [f"{store}: {path} lacks {len(gone)} of {len(told)} signed heads: a missing end could not be detected"]
    return (said, []) if gone == told else ([], said)


def _heads(path: Path) -> Iterator[Line]:
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            head = json.loads(line)
            texts = [head.get(name) for name in ("store", "hash", "public", "signature")]
            if all(isinstance(text, str) for text in texts) and isinstance(head["through"], int):
                yield {"head": head}
                continue
        except (ValueError, AttributeError, KeyError):
            pass
        if line and number < len(lines):  # a crash may cut a line short; the next append first ends that line
            yield {"head": {"store": "heads", "through": number, "hash": "", "public": "", "signature": ""}}


@contextmanager
def _stores(home: Home) -> Iterator[dict[str, Any]]:
    """Open the stores that have records, by owning process."""
    paths = {"task-runner": home.schedules_db, "agent-runtime": home.agent_db}
    if url := load_settings(home).store.shared_url:
        with ExitStack() as opened:
            yield {
                store: opened.enter_context(closing(required("shared-snapshot", url, schema)))
                for store, schema in SCHEMAS.items()
            }
        return
    with ExitStack() as opened:
        found = {
            store: opened.enter_context(sqlite_files.reading(path)) for store, path in paths.items() if path.exists()
        }
        yield {store: snapshot for store, snapshot in found.items() if sqlite_files.has_table(snapshot, "audit")}


def chains_of(snapshot: Any, store: str) -> Iterator[Line]:
    """Yield the heads of a store's chains, and the records of the chains. `snapshot` runs SQL."""
    yield from ({"head": head} for head in _ends(snapshot, store))
    yield from ({"record": record} for record in records(snapshot, store))


def records(snapshot: Any, store: str) -> Iterator[Line]:
    """Yield the records of a store, in the order of each chain. `snapshot` runs SQL."""
    for row in snapshot.execute(_RECORDS):
        yield _record(store, *row)
    if _has_own(snapshot):
        for chain, *row in snapshot.execute(_OWN_RECORDS):
            yield _record(store, *row) | {"chain": chain}


def _record(store: str, number: Any, at_us: Any, body: Any, content: object, found: object) -> Line:
    """Return a record. Replace a value of a wrong type, which only another program writes. It then matches no hash."""
    hashes = {"content_hash": _hexadecimal(content), "hash": _hexadecimal(found)}
    places = {"number": number if isinstance(number, int) else 0, "at_us": at_us if isinstance(at_us, int) else 0}
    return {"store": store, **places, "body": body if isinstance(body, str | None) else "", **hashes}


def _ends(snapshot: Any, store: str) -> Iterator[Line]:
    """Yield the heads of the chains, with their signatures."""
    for chain, node, number, newest, signature in snapshot.execute(_OWN_ENDS) if _has_own(snapshot) else ():
        signed = {"public": chain, "signature": _hexadecimal(signature)}
        yield {"store": store, "chain": chain, "node": node, "through": number, "hash": _hexadecimal(newest)} | signed


def _has_own(snapshot: Any) -> bool:
    return not sqlite_files.is_open_file(snapshot) and any(has for (has,) in snapshot.execute(_HAS_OWN))


def _hexadecimal(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else ""


def differences(snapshot: Any, store: str) -> Iterator[str]:
    """Yield a sentence for each difference between the tables and the records."""
    told: dict[tuple[str, Any], dict[str, Line]] = {}
    begun: dict[str, int] = {}
    pruned_us, withdrawn, erased = 0, set[Any](), set[tuple[str, Any, str]]()
    for record in records(snapshot, store):
        fact = _fact(record)
        kind = fact.get("kind")
        erased |= {(of, name, field) for of, name, field in fact.get("fields", ())}
        if kind == "begin":
            begun |= {of: min(up_to, begun.get(of, up_to)) for of, up_to in fact.items() if isinstance(up_to, int)}
        elif kind == "pruned":
            pruned_us = max(pruned_us, fact.get("before_us", 0))
        elif kind == "withdrawn":
            withdrawn.add(fact.get("entry"))
        for table in TABLES[store]:
            if kind == table.kind:
                told.setdefault((kind, fact.get(table.key)), {})[record.get("chain", "")] = fact
    for table in TABLES[store]:
        yield from _of_table(snapshot, table, told, begun, pruned_us, erased)
    for (kind, name), facts in told.items():
        fact = max(facts.values(), key=_at)
        gone = _is_pruned(fact, pruned_us) or (kind == "skip" and name in withdrawn)
        if not gone and not (kind == "decision" and not fact.get("decision")):
            yield f"{kind} {name} is on record, but gone from the store"


def _at(fact: Line) -> int:
    return int(fact["at_us"])


def _is_pruned(fact: Line, pruned_us: int) -> bool:
    """Return True if a record's row is older than the last pruning."""
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
    told: dict[tuple[str, Any], dict[str, Line]],
    begun: dict[str, int],
    pruned_us: int,
    erased: set[tuple[str, Any, str]],
) -> Iterator[str]:
    """Yield each difference between a table's rows and their records, except erased texts. Remove those from `told`."""
    for name, number, ended_us, *values in snapshot.execute(table.query):
        facts = told.pop((table.kind, name), None)
        if facts is None:
            if _reaches(ended_us, pruned_us) and _reaches(number, begun.get(table.kind, 0) + 1):
                yield f"{table.noun} {name} is in the store, but has no record"
            continue
        latest = max(map(_at, facts.values()))
        found = [
            [field for field in _changed(table, fact, values) if (table.kind, name, field) not in erased]
            for fact in facts.values()
            if latest - _at(fact) <= _SAME_TIME_US
        ]
        for field in min(found, key=len):
            yield f"{table.noun} {name} was changed: {field.removesuffix('_hash')} is not as recorded"


def _reaches(value: object, least: int) -> bool:
    """Return True unless a value is a number below `least`. Our programs write only numbers."""
    return not isinstance(value, int) or value >= least


def _changed(table: Table, fact: Line, values: Sequence[Any]) -> Iterator[str]:
    """Yield the fields that differ between a record and its row. Skip fields that are missing in the record."""
    for field, value in zip(table.fields, values, strict=True):
        if field in fact and fact[field] not in _forms(field, value):
            yield field


def _forms(field: str, value: Any) -> Sequence[Any]:
    """Return the forms that a value may have in a record: the value, or its hash."""
    if not field.endswith("_hash") or field == "args_hash":
        return [value]
    if not isinstance(value, str):
        return []
    return [digest(value), *map(digest, _as_written_later(value) if field == "category_hash" else ())]


def _as_written_later(category: str) -> Iterator[str]:
    """Yield a category without graphs in the form of later versions, because some records hash that form."""
    with suppress(ValueError, TypeError):
        said = {"graphs": [""], **json.loads(category)}
        yield json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
