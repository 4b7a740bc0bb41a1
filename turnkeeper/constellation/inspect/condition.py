"""The faults of a home and their fixes: its markers, the doctor's checks, and whether the daemons can start.

This module changes nothing in the home.
"""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import Any

from turnkeeper.config.build import build, install_command
from turnkeeper.config.home import RESTORED, TAKE_OVER, Home
from turnkeeper.config.settings import OF_A_SURFACE, Settings, load_settings
from turnkeeper.config.started import Start, changes, read_start, settings_now
from turnkeeper.config.surfaces import gathered, processes, required, surfaces
from turnkeeper.config.toml_file import read_toml, shared_url_in
from turnkeeper.constellation.inspect.finding import UNREAD_S, Finding, unread
from turnkeeper.constellation.supervisor import escalation, markers
from turnkeeper.constellation.supervisor.daemons import DAEMONS, EVERY, SUPERVISOR, Daemon, process_of, running, serves
from turnkeeper.constellation.supervisor.up_down import orders_of
from turnkeeper.constellation.supervisor.watchdog import read_orders, troubles_of
from turnkeeper.errors import Conflict, Corrupt, InvalidInput, MachineTrouble, TurnkeeperError, Unreachable
from turnkeeper.rpc.pruning import held
from turnkeeper.storage import damage
from turnkeeper.storage.files import why_unwritable
from turnkeeper.storage.keys import PURPOSES, KeyFile, permission_faults
from turnkeeper.storage.locking import is_held, reader_of
from turnkeeper.storage.schema_revision import check_revision, older_stores
from turnkeeper.times import rfc3339

_UP = "fix the cause, then run: turnkeeper up"
RELOAD, RESTART = "turnkeeper up --restart", "turnkeeper restart"


def findings(home: Home, now: float) -> list[Finding]:
    """Return the faults and findings from the markers, with the worst one first for each process."""
    own = (item for daemon in EVERY for item in _of(home, daemon.name))
    return [*_troubles(home), *own, *_of_all(home, now), *_held(home), *_older(home), *_unread(home, now)]


def _held(home: Home) -> Iterator[Finding]:
    """Yield each process that deletes no old history because its clock jumped."""
    for process in (*(daemon.name for daemon in DAEMONS), "watchdog"):
        if why := held(home, process):
            yield Finding(process=process, what=f"deletes no old history: {why}", degraded=False)


def outdated(home: Home) -> Iterator[Finding]:
    """Yield each process with a different build or older settings, and each section that no installed part reads."""
    with suppress(InvalidInput):  # another check reports faults of the settings
        for daemon in (*EVERY, SUPERVISOR):
            process = process_of(home, daemon)
            start = None if process is None else read_start(home, daemon.name, process.pid)
            if process is not None and (other := _other_build(home, daemon, start)):
                fix = f"run: {RELOAD}" if "--foreground" not in process.cmdline() else "restart its service"
                yield Finding(process=daemon.name, what=other, fix=fix, degraded=False)
            elif daemon in EVERY and start and (changed := changes(start.settings, settings_now(home, daemon.name))):
                what = f"runs with older settings; changed since: {', '.join(changed)}"
                yield Finding(process=daemon.name, what=what, fix=f"run: {RELOAD}", degraded=False)
            elif start and (edited := start.edited()):
                what = f"still runs the earlier code of {', '.join(edited)}"
                yield Finding(process=daemon.name, what=what, fix=f"run: {RESTART}", degraded=False)
        orders = read_orders(home)
        if orders is not None and orders != orders_of(load_settings(home)):
            own = "".join(f", [{one.name}]" for one in processes())
            what = f"[watchdog], [logs]{own} or [node] was changed since the last turnkeeper up"
            yield Finding(process=SUPERVISOR.name, what=what, fix="run: turnkeeper up", degraded=False)
        for section in _unread_sections(home):
            what = f"{home.config}: [{section}] is ignored: the part of the program that reads it is not installed"
            yield Finding(process="", what=what, fix="", degraded=False)
    for what, fix in gathered("findings", home):
        yield Finding(process=DAEMONS[0].name, what=what, fix=fix, degraded=False)


def _unread_sections(home: Home) -> list[str]:
    """Return the sections of config.toml that belong to parts of the program that are not installed."""
    optional = {name for name, one in Settings.model_fields.items() if one.json_schema_extra == OF_A_SURFACE}
    read = {section for surface in surfaces().values() for section in surface.settings}
    said = read_toml(home.config).data if home.config.exists() else {}
    return sorted(section for section in optional - read if said.get(section))


def _other_build(home: Home, daemon: Daemon, start: Start | None) -> str:
    """Return the different build that a process runs. Empty if the process runs this build or is only starting."""
    if start is not None:
        return f"runs build {start.build}, and this is {build()}" if start.build != build() else ""
    if daemon is SUPERVISOR or serves(home, daemon):
        return f"runs a build older than {build()}, which did not record its build"
    return ""


def _older(home: Home) -> Iterator[Finding]:
    """Yield the stores that the next start will upgrade."""
    for path in older_stores(home):
        owner = DAEMONS[0] if path == home.agent_db else DAEMONS[1]
        if not is_held(home, owner.name):
            what = f"{path.name} has an older schema; commands read a copy until it is brought up to date"
            yield Finding(process="", what=what, fix="to bring it up to date, run: turnkeeper up", degraded=False)


def _unread(home: Home, now: float) -> Iterator[Finding]:
    """Yield the inboxes that have waiting envelopes and no reader."""
    hosted = re.compile(r"agent[0-9]+", re.ASCII)  # the runtime reads these inboxes while it runs
    runs = is_held(home, DAEMONS[0].name)
    for agent in _folders(home):
        own = hosted.fullmatch(agent.name)
        if (own and not runs) or not (agent / "inbox").is_dir():
            continue
        places = [agent / "inbox"] if own else [agent / "inbox", agent / "claimed"]  # its reader may have ended
        lying = (path for place in places if place.is_dir() for path in place.iterdir())
        times = [_put_at(path) for path in lying if not path.name.startswith(".")]
        if times and now - min(times) > UNREAD_S and not reader_of(agent):
            since = rfc3339(datetime.fromtimestamp(int(min(times)), UTC))
            found = unread(agent.name, len(times), since)
            fix = f"set enabled = true below [peers] in {home.config}; run: turnkeeper up"
            yield replace(found, fix=fix) if "@" in agent.name else found


def _folders(home: Home) -> list[Path]:
    """Return the folders of agents. If machines share a store, leave out terminals, because their inboxes are rows."""
    folder = home.root / "channels" / "agent"
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    is_shared = bool(found and _shared_url(home))
    return [path for path in found if not is_shared or re.fullmatch(r"agent[0-9]+|.*@.*", path.name, re.ASCII)]


def _shared_url(home: Home) -> str:
    with suppress(InvalidInput):  # another check reports this
        return shared_url_in(home.config)
    return ""


def _put_at(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except FileNotFoundError:
        return inf  # the envelope was claimed meanwhile


def _troubles(home: Home) -> Iterator[Finding]:
    """Yield the machine trouble that blocks the home or a daemon."""
    for trouble in unwritable(home):
        yield Finding(process="", what=f"{trouble.where}: {trouble.what}", fix=trouble.hint)
    for process, what in troubles_of(home, EVERY).items():
        yield Finding(process=process, what=what, fix="it tries again by itself")


def unwritable(home: Home) -> Iterator[MachineTrouble]:
    """Yield the fault of the first folder in the home that cannot be written."""
    channels = home.root / "channels" / "agent"
    inboxes = [agent / "inbox" for agent in sorted(channels.iterdir())] if channels.is_dir() else []
    for folder in (home.root, home.run.parent, home.run, home.logs, *inboxes):
        if folder.is_dir() and (trouble := why_unwritable(folder)) is not None:
            yield trouble
            return


def _of(home: Home, process: str) -> Iterator[Finding]:
    loop = markers.read_marker(markers.CRASH_LOOP.at(home, process=process))
    if loop is not None:
        yield Finding(process=process, what=f"crash loop suspected: {_said(loop, 'reason')}", fix=_UP)
    hang = markers.read_marker(markers.HANG.at(home, process=process))
    if hang is not None:
        what = "hang suspected: its progress counter does not advance"
        yield Finding(
            process=process,
            what=what,
            fix="it is killed at the next check, unless you run: turnkeeper watchdog suspend 30m",
        )
    failed = markers.read_marker(markers.FAILED_REVIVE.at(home, process=process))
    if failed is not None and loop is None:
        runs = "it runs again; " if is_held(home, process) else ""
        what = f"{runs}the last start was not verified: {_said(failed, 'error')}".rstrip(": ")
        waits = isinstance(failed, dict) and bool(failed.get("waits"))
        yield Finding(process=process, what=what, fix=markers.WAITS if waits else "", degraded=False)
    for kind in (markers.ATTEMPTS, markers.INFLIGHT):
        if isinstance(markers.read_marker(kind.at(home, process=process)), markers.Unreadable):
            what = f"{kind.path.replace('<process>', process)} cannot be read, so the watchdog does nothing"
            yield Finding(process=process, what=what, fix="to rewrite it, run: turnkeeper up")


def _of_all(home: Home, now: float) -> Iterator[Finding]:
    restored = markers.read_marker(markers.RESTORED.at(home))
    if restored is not None:
        what = f"{RESTORED}{home.named_original}, as of {_said(restored, 'backup_at')}; nothing runs"
        yield Finding(process="", what=what, fix=TAKE_OVER, degraded=False)
    elif (moved := markers.read_marker(markers.MIGRATED.at(home))) is not None:
        with suppress(InvalidInput):  # another check reports faults of the settings
            if why := home.waits_for_takeover():
                what = f"{why[0]} ({_said(moved, 'to')}, at {_said(moved, 'at')}); nothing runs"
                yield Finding(process="", what=what, fix=why[1], degraded=False)
    if markers.read_marker(markers.PROCESSING.at(home)) is not None:
        yield Finding(process="", what="a planned restart of agent-runtime is in progress", degraded=False)
    orders = read_orders(home)
    has_route = orders is not None and bool(orders.routes.command or orders.routes.webhook)
    for path in markers.found(home, markers.ESCALATION):
        yield _of_alert(markers.read_marker(path), now, has_route=has_route)
    for path in markers.found(home, markers.QUIET):
        epoch = path.name.removeprefix("quiet-until-")
        if not (epoch.isascii() and epoch.isdigit()):
            what = f"{path.name} names no time, so hang detection stays suspended"
            yield Finding(process="", what=what, fix="run: turnkeeper watchdog suspend --clear")
        elif int(epoch) > now:
            until = rfc3339(datetime.fromtimestamp(int(epoch), UTC))
            yield Finding(process="", what=f"hang detection is suspended until {until}", degraded=False)
    for process, what, fix in gathered("findings of daemons", home):
        yield Finding(process=process, what=what, fix=fix, degraded=False)


def _of_alert(says: dict[str, Any] | markers.Unreadable | None, now: float, *, has_route: bool) -> Finding:
    """Return the finding for an alert that is being delivered, is retried, or has no route."""
    told: dict[str, Any] = says if isinstance(says, dict) else {}
    over_at, tried_at = _said(told, "over_at"), told.get("tried_at")
    for_s = now - tried_at if isinstance(tried_at, int | float) else inf
    if told.get("failed") is False and 0 <= for_s < 12 * escalation.LONGEST_S:  # a tick sends its alerts one by one
        return Finding(process="", what=f"an alert is being delivered: {_said(says, 'text')}", degraded=False)
    since = f" (its cause is over since {over_at})" if over_at else ""
    fix = "set [watchdog] command or webhook in config.toml, then run: turnkeeper up"
    if has_route:
        why = "tries again; to see why it failed, run: turnkeeper events --kind escalate.failed"
        fix = f"the supervisor {why if tried_at else 'sends it at its next check'}"
    return Finding(process="", what=f"alert not delivered{since}: {_said(says, 'text')}", fix=fix, degraded=not over_at)


def _said(says: dict[str, Any] | markers.Unreadable | None, key: str) -> str:
    if isinstance(says, dict):
        return str(says.get(key) or "")[:500]
    return "the marker cannot be read" if says is not None else ""


@dataclass(frozen=True, kw_only=True)
class Check:
    """A check of the doctor, with the faults that it found."""

    name: str
    findings: tuple[Finding, ...]


def examine(home: Home, now: float) -> Iterator[Check]:
    """Run the checks one after the other. Change nothing. To read large stores completely takes time."""
    looks: tuple[tuple[str, Callable[[], Iterator[Finding]]], ...] = (
        ("can start", lambda: map(_finding, preflight(home))),
        ("runs", lambda: _runs(home)),
        ("markers", lambda: iter(findings(home, now))),
        ("builds and settings", lambda: outdated(home)),
        ("stores", lambda: _stores(home)),
        ("keys", lambda: _keys(home)),
        ("inboxes", lambda: _inboxes(home)),
        ("listens", lambda: _listens(home)),
    )
    for name, find in looks:
        yield Check(name=name, findings=tuple(find()))
    yield from _cluster(home)


def _cluster(home: Home) -> Iterator[Check]:
    """Yield checks of a shared database and its machines."""
    try:
        if not (url := load_settings(home).store.shared_url):
            return
        checked = required("checks of machines", import_module("turnkeeper.storage.nodes").read_cluster(url))
    except InvalidInput:  # another check reports this
        return
    except TurnkeeperError as error:
        yield Check(name="database", findings=(_finding(error),))
        return
    for name, findings in checked.items():
        yield Check(name=name, findings=findings)


def _listens(home: Home) -> Iterator[Finding]:
    try:
        settings = load_settings(home)
    except InvalidInput:  # another check reports this
        return
    places = [place for one in surfaces().values() for place in one.listens(settings).items()]
    for process, place in places:
        if is_held(home, process):
            says = home.run / f"{process}.listens"  # the address at its start; the settings may differ now
            now, fix = says.read_text() if says.is_file() else place, "turnkeeper down, then turnkeeper up"
            what = f"listens on {now}" if now == place else f"listens on {now}; set since: {place or 'nothing'}"
            yield Finding(process=process, what=what, fix="" if now == place else fix, degraded=False)


def _finding(error: TurnkeeperError) -> Finding:
    return Finding(process="", what=f"{error.where}: {error.what}" if error.where else error.what, fix=error.hint)


def _runs(home: Home) -> Iterator[Finding]:
    if read_orders(home) is None:
        yield Finding(
            process="", what="nothing is supposed to run", fix="to start it, run: turnkeeper up", degraded=False
        )
        return
    asking = import_module("turnkeeper.constellation.inspect.status")  # it loads gRPC, which other commands do not need
    rows = asking.rows(home, [], supervised=True)
    for row in rows:
        if row["state"] == "stopped":
            yield Finding(process=row["process"], what="does not run", fix="run: turnkeeper up")
    yield from asking.unreachable(home, rows)


def _stores(home: Home) -> Iterator[Finding]:
    for path in (home.schedules_db, home.agent_db, home.checkpoints_db):
        if path.exists() and (trouble := damage.trouble_of(path)):
            yield _finding(trouble)


def _keys(home: Home) -> Iterator[Finding]:
    try:
        home.check_keys()
    except InvalidInput as error:
        yield replace(_finding(error), fix=error.hint.removeprefix("run: "))
    yield from readable_keys(home)
    for purpose in PURPOSES:
        try:
            KeyFile(home, purpose).read()
        except TurnkeeperError as error:
            yield _finding(error)


def readable_keys(home: Home) -> Iterator[Finding]:
    """Yield each key that other users can use. No process takes such a key: fires wait."""
    for path, wanted in permission_faults(home):
        yield Finding(process="", what=f"{path}: other users can use your keys", fix=f"chmod {wanted:o} {path}")


def _inboxes(home: Home) -> Iterator[Finding]:
    for agent in _folders(home):
        aside = [path for path in (agent / "quarantine").glob("*.json") if not path.name.startswith(".")]
        if aside:
            what = f"{agent.name} has {len(aside)} quarantined envelope{'' if len(aside) == 1 else 's'}"
            yield Finding(process="", what=what, fix=f"turnkeeper inbox quarantine {agent.name}", degraded=False)


LEAST_FREE_BYTES = 64 << 20
_ENTRY_POINTS = ("agent_runtime.daemon", "task_runner.daemon", "turnkeeper.constellation.supervisor")


def preflight(home: Home) -> list[TurnkeeperError]:
    """Return each error that would prevent a daemon from starting on this home. Return none if the daemon can start."""
    return [*_program_errors(), *_missing(home), *_file_errors(home), *_store_errors(home)]


def _program_errors() -> Iterator[TurnkeeperError]:
    if not os.access(sys.executable, os.X_OK):
        yield TurnkeeperError(
            "the Python interpreter is missing", where=sys.executable, hint="install turnkeeper again"
        )
    for name in _ENTRY_POINTS:
        if find_spec(name) is None:
            yield TurnkeeperError(f"{name} is not installed", where=sys.prefix, hint="install turnkeeper again")


def missing_packages(settings: Settings) -> Iterator[TurnkeeperError]:
    """Yield the enabled features whose packages are not installed."""
    for one in settings.processes:
        if any(find_spec(name) is None for name in one.needs):
            what = "is enabled, but the packages that it needs are not installed"
            yield InvalidInput(what, where=f"[{one.name}]", hint=f"run: {install_command(f'turnkeeper[{one.extra}]')}")


def _missing(home: Home) -> Iterator[TurnkeeperError]:
    with suppress(TurnkeeperError):  # another check reports this
        yield from missing_packages(load_settings(home))


def _file_errors(home: Home) -> Iterator[TurnkeeperError]:
    keys = [KeyFile(home, purpose).read for purpose in PURPOSES]
    for check in (home.check, home.check_sockets, home.check_keys, lambda: load_settings(home), *keys):
        try:
            check()
        except TurnkeeperError as error:
            yield error
    yield from unwritable(home)
    free = shutil.disk_usage(home.root).free
    if free < LEAST_FREE_BYTES:
        what = f"its disk has only {free >> 20} MiB free"
        yield TurnkeeperError(what, where=str(home.root), hint=f"free at least {LEAST_FREE_BYTES >> 20} MiB")


def _store_errors(home: Home) -> Iterator[TurnkeeperError]:
    for path in (home.schedules_db, home.agent_db, home.checkpoints_db):
        if path.exists() and (found := damage.trouble_of(path, within_s=damage.START_S)):
            yield found
    yield from newer_stores(home)
    yield from strange_stores(home)


def strange_stores(home: Home) -> Iterator[TurnkeeperError]:
    """Yield an error for each store that is not the one the home used last. Yield none if a server has the stores."""
    with suppress(InvalidInput):  # another check reports faults of the settings
        if not load_settings(home).store.is_shared:
            yield from import_module("turnkeeper.storage.identity").faults(home)


def refuse_twin(home: Home) -> None:
    """Raise Conflict if this machine runs a copy of this home, because both would run the same tasks."""
    numbers, original = import_module("turnkeeper.storage.identity").numbers, home.original
    own = numbers(home)
    for other, daemon, pid in running():
        if other.root.samefile(home.root):
            continue
        if str(other.root) == original or own & numbers(other):
            what = f"{daemon.name} (pid {pid}) runs on another copy of this home, {other.root}"
            hint = f"stop that one first: turnkeeper --home {shlex.quote(str(other.root))} down"
            raise Conflict(what, where=str(home.root), hint=hint)


def fit_to_start(home: Home) -> Settings:
    """Return the settings. Raises TurnkeeperError, before any write, if no daemon could start."""
    home.check()
    home.check_sockets()
    for error in newer_stores(home):
        raise error
    settings = load_settings(home)
    for missing in missing_packages(settings):
        raise missing
    if settings.store.is_shared:
        with suppress(Unreachable):  # the daemons of such a home wait for the server
            import_module("turnkeeper.storage.database").check_schemas(settings.store.url)
    for strange in strange_stores(home):
        raise strange
    return settings


def newer_stores(home: Home) -> Iterator[Conflict]:
    """Yield an error for each store that a newer version of the program wrote. Skip unreadable stores."""
    for path, migrations in (
        (home.schedules_db, "task_runner.store:migrations"),
        (home.agent_db, "agent_runtime.store:migrations"),
    ):
        try:
            check_revision(path, migrations)
        except Conflict as error:
            yield error
        except Corrupt:
            continue  # the program that opens the store reports the fault
