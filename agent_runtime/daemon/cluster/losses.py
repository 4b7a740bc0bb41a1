"""Commits that a shared database lost because another server took over.

An asynchronous standby may lack the last commits of its primary. Each daemon stores in its home which server it saw
last: the system identifier and the timeline, which a promotion raises. If records that a machine has signed or seen are
then missing, and the server is another one, the database lost them. If it is the same server, a program changed them.

A running process knows the number of its last record. It notices a loss within a second, and writes the record of the
loss again if the transaction that wrote it was rolled back. After a restart it knows the heads of its last check, and
reads from its chain which losses the previous process noticed.
"""

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, MetaData, func, select

from turnkeeper.config.home import Home
from turnkeeper.storage.chain import RESTORED, Fact, Recorder, SharedChains, is_signed, shared_tables_of
from turnkeeper.storage.files import replace_whole
from turnkeeper.storage.statements import server_of
from turnkeeper.times import from_us, parse_rfc3339, rfc3339, to_us

MOST_KEPT = 20
_FILE = "database-seen-{}.json"
_TOLD = ("since", "to", "before", "now", "records")


def lost_end(connection: Connection, of: Recorder, store: str, number: int, kind: str) -> list[Fact] | None:
    """Return the records to write before the next record of a chain that ends earlier than its recorder knows.

    Return None if the recorder knows the server, if no record is missing, or if its key did not sign the end, because
    then another program changed the chain.
    """
    before, now = of.server, server_of(connection)
    if not before or not now or now == before or not _is_end_signed(connection, of, store):
        return None
    if kind == RESTORED:
        return []
    if number >= of.reached.get(store, 0):  # no record is missing
        return None
    fact = next((one for one in of.lost if one["now"] == now), None)  # noticed before, in a unit that was rolled back
    if fact is None:
        fact = _fact(connection, of, before, now, of.reached.get(store, 0) - number, {of.public: number})
        of.lost.append(fact)
    of.reached[store] = number + 1  # the record of the loss
    return [fact]


def found_loss(
    home: Home, store: str, of: Recorder, connection: Connection, at: datetime, seen: Sequence[Fact]
) -> Callable[[Callable[..., None]], bool] | None:
    """Compare the server with the server of the last check. Return None if it is the same server.

    If heads in `seen` are misfits since `at`, or the recorder's last records are missing, record the loss in the chain.
    The caller calls the result with the log's `emit` after the commit. The call stores the server's identity, raises an
    alert, and returns True if the database lost records.
    """
    now, known = server_of(connection), read_known(home, store)
    before, lost = known["server"], list(of.lost)
    misfits = [one for one in seen if one.get("misfit_at") == rfc3339(at)]
    moved = bool(now and before and now != before)
    end = _ends(connection, store).get(of.public, 0) if moved else 0
    if moved and not lost and (lost := _missing(connection, store, of, before, now, misfits)):
        SharedChains(store).append(connection, at, lost, of)
        of.lost += lost
        of.reached[store] = end + 1  # the record of the loss
    elif moved and lost and end < of.reached.get(store, 0):  # the transaction that noticed the loss was rolled back
        SharedChains(store).append(connection, at, lost, of)
    elif moved and not lost:
        lost = _recorded(connection, of, before, now)
    if not now or now == before:
        of.server = before
        return None
    facts = [{**fact, "to": rfc3339(at), "says": sentence(fact, at)} for fact in lost]

    def note(emit: Callable[..., None]) -> bool:
        of.server, of.lost = now, []
        kept = {"server": now, "lost": [*known["lost"], *facts][-MOST_KEPT:]}
        replace_whole(home.audit_seen(store).with_name(_FILE.format(store)), json.dumps(kept, indent=1).encode())
        for fact in facts:
            _alert(home, now, fact["says"])
            emit("database.lost", durable=True, **{name: fact[name] for name in _TOLD})
        if before and not facts:
            emit("database.moved", before=before, now=now)
        return bool(facts)

    return note


def sentence(loss: Fact, at: datetime) -> str:
    """Return a sentence about a loss, with its time, the servers, and the records."""
    return (
        f"the database lost commits between {loss['since']} and {rfc3339(at)}: another server took over "
        f"({loss['before']}, now {loss['now']}), and at least {loss['records']} signed records are missing"
    )


def read_known(home: Home, store: str) -> dict[str, Any]:
    """Return the server that a process saw last, and the losses that it noticed; empty before the first check."""
    try:
        known = json.loads(home.audit_seen(store).with_name(_FILE.format(store)).read_bytes())
        return {"server": str(known["server"]), "lost": list(known["lost"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {"server": "", "lost": []}


def _missing(
    connection: Connection, store: str, of: Recorder, before: str, now: str, misfits: Sequence[Fact]
) -> list[Fact]:
    """Return the record of a loss. Empty if no record is missing."""
    ends = _ends(connection, store)
    own = [one for one in misfits if one["store"] == store]
    undone = {one["chain"]: min(ends.get(one["chain"], 0), int(one["through"]) - 1) for one in own}
    gone = sum(max(1, int(one["through"]) - ends.get(one["chain"], 0) if one in own else 1) for one in misfits)
    if (reached := of.reached.get(store, 0)) > ends.get(of.public, 0):
        gone = max(gone, reached - ends.get(of.public, 0))
        undone.setdefault(of.public, ends.get(of.public, 0))
    return [_fact(connection, of, before, now, gone, undone, misfits)] if misfits or undone else []


def _ends(connection: Connection, store: str) -> dict[str, int]:
    """Return the number of the last record of each chain of a store."""
    return {head["chain"]: int(head["through"]) for head in SharedChains(store).heads(connection)}


def _recorded(connection: Connection, of: Recorder, before: str, now: str) -> list[Fact]:
    """Return the records of a change of the server that an earlier process of this home wrote."""
    _, records_of = shared_tables_of(MetaData())
    kinds = records_of.c.body.like(f'%"kind":"{RESTORED}"%')
    bodies = connection.execute(select(records_of.c.body).where(records_of.c.chain == of.public, kinds)).scalars()
    found = [json.loads(body) for body in bodies]
    return [one for one in found if (one.get("before"), one.get("now")) == (before, now)]


def _is_end_signed(connection: Connection, of: Recorder, store: str) -> bool:
    heads = [head for head in SharedChains(store).heads(connection) if head["chain"] == of.public]
    said = [(head["through"], bytes.fromhex(head["hash"]), bytes.fromhex(head["signature"])) for head in heads]
    return any(is_signed(of.public, store, *end) for end in said)


def _fact(
    on: Connection, of: Recorder, before: str, now: str, records: int, ends: dict[str, int], seen: Sequence[Fact] = ()
) -> Fact:
    """Return the record of a loss. The loss began after the newest own record that is not later than `seen`."""
    _, records_of = shared_tables_of(MetaData())
    newest = select(func.coalesce(func.max(records_of.c.at_us), 0)).where(records_of.c.chain == of.public)
    if seen:  # a later record was written after the loss
        newest = newest.where(records_of.c.at_us <= min(to_us(parse_rfc3339(one["at"])) for one in seen))
    since = rfc3339(from_us(on.execute(newest).scalar_one()))
    told = {"since": since, "before": before, "now": now, "records": records}
    return {"kind": RESTORED, "incarnation": "", "ends": [list(end) for end in ends.items()], **told}


def _alert(home: Home, now: str, text: str) -> None:
    """Write an alert for the supervisor to send, once for a change of the server."""
    path = home.run.parent / f"escalate-failed-{now.replace(' timeline ', '.')}-database"
    says = {"text": f"turnkeeper: database: {text} ({home.root})", "tried_at": None}
    replace_whole(path, json.dumps(says, sort_keys=True).encode())
