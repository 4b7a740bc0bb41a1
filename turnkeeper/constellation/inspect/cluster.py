"""The machines that share a database: their reports, the waiting envelopes, and all faults.

Everything is read from the database through a read-only connection, so every machine reports the same.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from turnkeeper.console.lists import columns
from turnkeeper.constellation.inspect.finding import UNREAD_S, Finding, unread
from turnkeeper.storage import nodes
from turnkeeper.storage.schema_revision import STORES, known_revisions
from turnkeeper.storage.statements import AT_STANDBY, loses
from turnkeeper.times import from_us, rfc3339

OFF_S = 2.0  # the difference from the database's clock, in seconds, above which a clock is reported
OLDEST_SERVER = 15
MOST_USED = 0.9  # the share of the server's connections above which a report is made


COLUMNS = columns(
    "NODE STATUS ROLES HOST VERSION LAST_BEAT=silent_s #CLOCK=offset_s #THREADS #TURNS",
    roles=lambda row: roles_line(row["roles"]),
    silent_s=lambda row: f"{nodes.span(row['silent_s'])} ago",
    offset_s=lambda row: f"{row['offset_s']:+.1f}s",
)


def shown(cluster: nodes.Cluster) -> tuple[list[dict[str, Any]], object, str]:
    """Return the machines, the columns of `turnkeeper status` for them, and a sentence about their queue."""
    return machines(cluster.processes), COLUMNS, queue_line(cluster.queue)


def findings(cluster: nodes.Cluster) -> list[Finding]:
    """Return the findings about the machines for `turnkeeper status`."""
    return [*of_inboxes(cluster), *of_categories(cluster), *of_cordons(cluster)]


def checks(cluster: nodes.Cluster) -> dict[str, tuple[Finding, ...]]:
    """Return the findings for `turnkeeper doctor`, by check."""
    of_machines = (*of_nodes(cluster), *of_cordons(cluster))
    inboxes = tuple(of_inboxes(cluster))
    return {"database": tuple(of_server(cluster)), "nodes": of_machines, "inboxes of terminals": inboxes}


def of_cordons(cluster: nodes.Cluster) -> Iterator[Finding]:
    """Yield a finding if no machine takes turns because each one is cordoned."""
    states = {row["state"] for row in current(cluster.processes) if row["role"] == "agent-runtime"}
    if "cordoned" in states and "ready" not in states:
        yield Finding(process="", what="no machine takes new turns: all are cordoned", fix="turnkeeper uncordon NODE")


def of_inboxes(cluster: nodes.Cluster) -> Iterator[Finding]:
    """Yield a finding for each agent in a terminal whose envelopes have no reader or are quarantined."""
    for row in cluster.inboxes:
        if row["waiting"] and row["oldest_s"] > UNREAD_S and not row["is_read"]:
            since = rfc3339(from_us(row["oldest_us"] // 1_000_000 * 1_000_000))
            yield unread(row["agent"], row["waiting"], since)
        if count := row["quarantined"]:
            what = f"{count} {'envelope' if count == 1 else 'envelopes'} of {row['agent']} in quarantine"
            yield Finding(process="", what=what, fix="turnkeeper inbox quarantine", degraded=False)


def of_categories(cluster: nodes.Cluster) -> Iterator[Finding]:
    """Yield the categories that some machines cannot use. Other machines begin the fires of these categories."""
    rows = [row for row in current(cluster.processes) if (row["role"], row["state"]) == ("agent-runtime", "ready")]
    for what in sorted({name for row in rows for name in row["facts"] if name.startswith("category ")}):
        bad = [row for row in rows if row["facts"].get(what, nodes.UNUSABLE).startswith(nodes.UNUSABLE)]
        if 0 < len(bad) < len(rows):
            names = ", ".join(row["name"] for row in bad)
            said = f"{what} cannot be used on {names}: other machines begin its fires"
            yield Finding(process="", what=said, fix="turnkeeper doctor", degraded=False)


def of_server(cluster: nodes.Cluster) -> Iterator[Finding]:
    """Yield the faults of the server and its schemas, and a summary."""
    server, revisions = cluster.server, cluster.revisions
    for schema, migrations in STORES.items():
        known = known_revisions(migrations)
        if revisions[schema] not in known:
            what = f"the schema {schema} is {revisions[schema]}; this program knows {max(known)}"
            yield Finding(process="", what=what, fix="upgrade turnkeeper")
    if server["major"] < OLDEST_SERVER:
        yield Finding(process="", what=f"PostgreSQL is {server['version']}", fix=f"use {OLDEST_SERVER} or newer")
    if server["is_standby"]:
        yield Finding(process="", what="the server is a standby, which takes no writes", fix=AT_STANDBY)
    if loses(server["synchronous_commit"], server["standbys"]):
        what = f"synchronous_commit is {server['synchronous_commit']}: no daemon starts"
        yield Finding(process="", what=what, fix="set it to on, for the server, the database or the role")
    if count := server["unconfirmed"]:
        what = f"{count} {'commit waits' if count == 1 else 'commits wait'} for a synchronous standby"
        fix = "start it; if it will not return, empty synchronous_standby_names and reload the server"
        yield Finding(process="", what=f"{what}: synchronous_standby_names is {server['standbys']}", fix=fix)
    for name in ("fsync", "full_page_writes"):
        if server[name] != "on":
            what = f"{name} is {server[name]}: a crash of the server's machine may lose or damage everything"
            yield Finding(process="", what=what, fix="set it to on")
    is_full = server["used"] >= MOST_USED * server["most"]
    schemas = " and ".join(f"{schema} {revision}" for schema, revision in revisions.items())
    used = f"{server['used']} of {server['most']} connections are used"
    what = f"PostgreSQL {server['version']}, schemas {schemas}; {used}"
    fix = "raise max_connections: a daemon takes five" if is_full else ""
    yield Finding(process="", what=what, fix=fix, degraded=is_full)


def of_nodes(cluster: nodes.Cluster) -> Iterator[Finding]:
    """Yield the faults of the machines, and their differences."""
    rows = current(cluster.processes)
    for row in rows:
        named = f"{row['role']} of {row['name']} ({row['host']})"
        if row["state"] == "stale":
            what = f"{named} has not been seen since {row['beat_at']}"
            yield Finding(
                process="",
                what=what,
                fix=f"start it there: turnkeeper up; or, if it will not return: turnkeeper forget {row['name']}",
            )
        if abs(row["offset_s"]) > OFF_S:
            what = f"the clock under {named} is {row['offset_s']:+.1f}s from the database's, which schedules all fires"
            yield Finding(process="", what=what, fix="set the machine's clock", degraded=False)
    lives = [row for row in rows if row["state"] != "stale"]
    twice = [row for row in lives if row["role"] != nodes.WEB]
    for name, role in sorted({(row["name"], row["role"]) for row in twice}):
        if sum((row["name"], row["role"]) == (name, role) for row in twice) > 1:
            what = f"several machines are called {name}, each with its {role}"
            yield Finding(process="", what=what, fix="give each a [node] name", degraded=False)
    versions = sorted({row["version"] for row in lives})
    if len(versions) > 1:
        what = f"the machines run different builds: {', '.join(versions)}; their categories and graphs are not compared"
        yield Finding(process="", what=what, fix="install the same build on all", degraded=False)
    for one in _differences(lives):
        if len(versions) < 2 or one.what.startswith("config") or nodes.UNUSABLE in one.what:
            yield one


def _differences(rows: Sequence[nodes.Row]) -> Iterator[Finding]:
    """Yield the machines' versions of each category, graph or setting that is not the same on all machines."""
    programs = [str(row["node_id"]).rpartition("-")[0] for row in rows]  # both daemons of a page have the same role
    for program in sorted(set(programs)):
        alike = [row for row, its in zip(rows, programs, strict=True) if its == program]
        for what in sorted({name for row in alike for name in row["facts"]} - {nodes.AGENTS, nodes.CORDONED}):
            if what.startswith(nodes.TAG):
                continue
            have: dict[str, list[str]] = {}
            for row in alike:
                have.setdefault(row["facts"].get(what, ""), []).append(row["name"])
            if len(have) > 1:
                said = "; ".join(
                    f"{', '.join(names)} has {fact.replace(nodes.UNUSABLE, 'one that ' + nodes.UNUSABLE, 1) or 'none'}"
                    for fact, names in sorted(have.items(), key=lambda item: item[1])
                )
                fix = "make the files equal, then restart the daemons there"
                is_setting = what.startswith("config")
                yield Finding(process="", what=f"{what} differs: {said}", fix=fix, degraded=not is_setting)


def current(processes: Sequence[nodes.Row]) -> list[nodes.Row]:
    """Return the processes without those that a later process of the same machine and role replaced."""
    found: dict[tuple[str, str, str], list[nodes.Row]] = {}
    for row in processes:
        found.setdefault((row["name"], row["host"], row["role"]), []).append(row)
    return [
        row
        for rows in found.values()
        for row in [one for one in rows if one["state"] != "stale"] or [max(rows, key=lambda one: str(one["beat_at"]))]
    ]


def machines(processes: Sequence[nodes.Row]) -> list[dict[str, Any]]:
    """Return a row for each machine, ordered by name."""
    found: dict[tuple[str, str], list[nodes.Row]] = {}
    for row in current(processes):
        found.setdefault((row["name"], row["host"]), []).append(row)
    return [_machine(name, host, rows) for (name, host), rows in sorted(found.items())]


def _machine(name: str, host: str, rows: Sequence[nodes.Row]) -> dict[str, Any]:
    oldest = max(rows, key=lambda row: float(row["silent_s"]))
    return {
        "node": name,
        "status": _status(rows),
        "roles": [_role(row) for row in rows if row["role"] != nodes.WEB] or [nodes.WEB],
        "host": host,
        "version": ", ".join(sorted({row["version"] for row in rows})),
        "beat_at": oldest["beat_at"],
        "silent_s": oldest["silent_s"],
        "offset_s": max((row["offset_s"] for row in rows), key=abs),
        "threads": sum(row["threads"] for row in rows),
        "turns": sum(row["turns"] for row in rows),
        "processes": [
            {name: row[name] for name in row if name not in {"name", "host", "facts"}} for row in rows
        ],
    }  # fmt: skip


def _status(rows: Sequence[nodes.Row]) -> str:
    """Return the state that all processes have, or else the states of the processes that are not ready.

    >>> _status([{"role": "task-runner", "state": "ready"}, {"role": "agent-runtime", "state": "stale"}])
    'runtime stale'
    """
    states = {row["state"] for row in rows}
    if len(states) == 1:
        return str(*states)
    return ", ".join(sorted(f"{_role(row)} {row['state']}" for row in rows if row["state"] != "ready"))


def _role(row: nodes.Row) -> str:
    return str(row["role"]).rpartition("-")[2]


def roles_line(roles: Sequence[str]) -> str:
    """Return the roles of a machine's processes, with counts if several processes have the same role.

    >>> roles_line(["runtime", "runner"]), roles_line(["runtime", "runner", "runtime"])
    ('runner,runtime', 'runner,2 x runtime')
    """
    found = sorted(Counter(roles).items())
    return ",".join(role if count == 1 else f"{count} x {role}" for role, count in found)


def queue_line(queue: nodes.Row) -> str:
    """Return a sentence about the waiting and quarantined envelopes.

    >>> queue_line({"waiting": 2, "oldest_s": 61.0, "quarantined": 0}), queue_line({"waiting": 0, "quarantined": 1})
    ('2 envelopes wait for a runtime, the oldest for 1m1s', 'no envelope waits; 1 is quarantined')
    """
    count = queue["waiting"]
    oldest = f", the oldest for {nodes.span(queue['oldest_s'])}" if count else ""
    said = f"{count or 'no'} envelope{' waits' if count < 2 else 's wait'}{' for a runtime' if count else ''}{oldest}"
    aside = queue["quarantined"]
    return f"{said}; {aside} {'is' if aside == 1 else 'are'} quarantined" if aside else said
