"""The commands of `turnkeeper` that manage the processes and the home."""

import os
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from turnkeeper import console
from turnkeeper.bus.envelope import check_text
from turnkeeper.bus.event_log import record_act
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home, places
from turnkeeper.config.settings import MOST_WORKERS, as_written, effective, load_settings, staffed
from turnkeeper.config.surfaces import imported, required, surfaces
from turnkeeper.config.toml_file import read_text
from turnkeeper.console import Output, OutputOption, home, named_home, note, show_record, show_rows, when
from turnkeeper.console import status as spinner
from turnkeeper.console.commands import App
from turnkeeper.console.lists import Listed, columns, listing
from turnkeeper.console.unseen import plain
from turnkeeper.constellation.inspect import condition
from turnkeeper.constellation.inspect.finding import Finding
from turnkeeper.constellation.install import setup
from turnkeeper.constellation.supervisor import daemons, markers, terminals, up_down
from turnkeeper.constellation.supervisor.escalation import check_alert, send_now
from turnkeeper.constellation.supervisor.watchdog import Watchdog, is_under_way, read_orders
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import EXIT_DEGRADED, Conflict, InvalidInput, TurnkeeperError
from turnkeeper.storage.keys import ENVELOPES, PURPOSES, KeyFile
from turnkeeper.times import parse_duration, rfc3339, to_us

config = App("Show the settings.")

_COLUMNS = columns("KEY VALUE SOURCE", value=lambda row: _shown(row["value"]))


@config.command()
def show(
    output: OutputOption = Output.TABLE,
    changed: Annotated[bool, typer.Option(help="Only settings that differ from their defaults.")] = False,
) -> None:
    """Print every setting in effect, with its source.

    Example: turnkeeper config show --changed
    """
    place = home()
    rows = [
        {"key": key, "value": list(value) if isinstance(value, tuple) else value, "source": source}
        for key, value, source in effective(staffed(load_settings(place), place), place)
        if not changed or source != "default"
    ]
    show_rows(rows, _COLUMNS, output, name_key="key")


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "(none)"
    return str(as_written(value)) if value != "" else "(empty)"


keys = App("The home's own keys.")

_KEYS = columns("PURPOSE KEY CREATED=created_at RETIRED=retired_at")


@keys.command("list")
@listing(_KEYS, "key")
def list_keys() -> Listed:
    """List all keys of the home without their secrets, including the keys of the page, of its clients and for peers.

    A retired key is kept as long as an envelope that it sealed exists.

    Example: turnkeeper keys list
    """
    place = home()
    rows = [
        {"purpose": name, "key": key.id, "created_at": key.created_at, "retired_at": key.retired_at or None}
        for name in PURPOSES
        for key in KeyFile(place, name).read()
    ]
    rows += [row for one in surfaces().values() if "keys" in one.offers for row in imported(one.offers["keys"])(place)]
    return Listed(rows, "" if rows else "no key yet; agent-runtime makes it at its first start: turnkeeper up")


@keys.command()
def rotate(
    purpose: Annotated[
        str, typer.Argument(metavar="[PURPOSE]", help="The key's purpose: envelopes, calls or audit.")
    ] = ENVELOPES,
    lost: Annotated[bool, typer.Option(help="The key is missing and no backup has it: continue without it.")] = False,
) -> None:
    """Put a new key into use. This also works while the daemons run.

    Envelopes that the old key sealed are still accepted. With --lost there is no old key. An
    envelope that it sealed is quarantined when it is claimed. The old key for calls is refused after a minute.
    Signatures of the old key for audit stay valid. Clients' keys: `turnkeeper web keys`; models': `turnkeeper model`.

    Example: turnkeeper keys rotate envelopes
    """
    place = home()
    if purpose not in PURPOSES:
        raise InvalidInput(f"no key for {purpose[:40]!r}", where="PURPOSE", hint=f"use one of: {', '.join(PURPOSES)}")
    made = KeyFile(place, purpose).rotate(SystemClock().now(), SystemEntropy(), lost=lost)
    record_act(place.logs, "turnkeeper", "keys rotate", f"{purpose} {made.id}", SystemClock())
    note(f"key {made.id} is in use for {purpose}")
    if lost and purpose == ENVELOPES:
        note("waiting envelopes were sealed with the lost key; after the start, read them and requeue them:")
        note("  turnkeeper inbox quarantine && turnkeeper inbox requeue AGENT NAME --seal")


def up(
    workers: Annotated[
        int | None, typer.Argument(metavar="[N]", min=0, max=MOST_WORKERS, help="Number of workers, agent1 to agentN.")
    ] = None,
    foreground: Annotated[
        bool, typer.Option(help="Run the supervisor in this process, for systemd and containers.")
    ] = False,
    takeover: Annotated[
        bool,
        typer.Option(
            help="Start a restored home (stop its original permanently first), or files that were moved to a database."
        ),
    ] = False,
    restart_: Annotated[
        bool,
        typer.Option("--restart", help="Restart the processes that run another build or older settings."),
    ] = False,
) -> None:
    """Start the daemons and their supervisor in the background, and return once they answer.

    The command can be repeated safely: it leaves running processes alone and starts those that died. It also clears the
    markers of crash loops, so that the watchdog tries again. A process keeps the build and the settings that it started
    with. If one of them differs now, `up` says so, and --restart restarts the process.

    N also applies to later starts. If the runtime runs with a different number of workers, it is restarted gracefully.

    Example: turnkeeper up 2
    """
    place = named_home()
    settings = condition.fit_to_start(place)
    if not takeover:
        place.check_taken_over()
    condition.refuse_twin(place)
    _take_over(place, files=takeover and not settings.store.is_shared)
    for text in up_down.prepare(place, settings):
        note(f"alert: {text}")
    if workers is not None:
        with spinner("changing the number of workers"):
            how = up_down.set_workers(place, workers, os.environ)
        if how:
            note(f"{daemons.AGENT_RUNTIME.name} {how}; it starts again with {workers} workers")
    environ = _let_reload(place) if restart_ else os.environ
    if foreground:
        argv = [sys.executable, "-P", "-m", daemons.SUPERVISOR.package, str(place.root), "--foreground"]
        os.execv(sys.executable, argv)  # noqa: S606  becomes the supervisor
    record_act(place.logs, "turnkeeper", "turnkeeper up", "", SystemClock())
    with spinner("starting"):
        fresh = up_down.bring_up(place, environ)
    for daemon in (one for one in daemons.EVERY if one.name in fresh):
        process = daemons.process_of(place, daemon)
        how = "is up" if fresh[daemon.name] else "was up already"
        note(f"{daemon.name} {how} (pid {process.pid if process else 'unknown'})")
    for finding in condition.outdated(place):
        note(str(finding))
    if place.root != places(None, os.environ)[0]:
        note(f"for the other commands: export TURNKEEPER_HOME={shlex.quote(str(place.root))}")


def _take_over(place: Home, *, files: bool) -> None:
    """Let daemons start on a restored home or, with `files`, on files with content that was moved to a database."""
    markers.clear_marker(markers.RESTORED.at(place))
    if files:
        markers.clear_marker(markers.MIGRATED.at(place))


def _let_reload(place: Home) -> Mapping[str, str]:
    """Stop the processes of another build or with older settings. Return the variables for the next supervisor."""
    with spinner("restarting"):
        # The next supervisor starts the daemons with these variables.
        environ = daemons.environ_of(place, daemons.SUPERVISOR) or os.environ
        stopped = up_down.stop_some(
            place,
            {one.process for one in condition.outdated(place) if one.fix[5:] in {condition.RELOAD, condition.RESTART}},
            os.environ,
        )
    for name, how in stopped.items():
        note(f"{name} {how}; it starts again with this build and the settings as they are now")
    return environ


_STOPPING = "stopping; agent-runtime waits up to a minute for its turns to reach a checkpoint (--force does not)"


def down(
    force: Annotated[bool, typer.Option(help="Do not wait for turns; kill the processes.")] = False,
) -> None:
    """Stop the supervisor and the daemons. A turn that does not end in time continues after the next `up`.

    Agents in terminals first receive an envelope of kind `shutdown`, and have up to 60 s to read it. Then the
    supervisor stops, so that it does not restart the daemons. If machines share a database, no envelope is sent.

    Example: turnkeeper down
    """
    place = home()
    record_act(place.logs, "turnkeeper", "turnkeeper down", "", SystemClock())
    told = ", ".join([] if force else terminals.read_now(place))
    with spinner(f"stopping; waiting up to 60s for {told} to take the shutdown" if told else _STOPPING):
        ended = up_down.bring_down(place, force=force)
    for name, how in ended.items():
        if name not in {daemons.SUPERVISOR.name, *(one.name for one in daemons.OPTIONAL)} or how != "was not running":
            note(f"{name} {how}")


LONGEST_NOTES = 8 << 10  # bytes; in JSON at worst six times as many, for which a marker has room
_PATIENCE_S = 600.0


def restart(
    handoff: Annotated[Path | None, typer.Option(help="A text file with notes for agent0.")] = None,
    reason: Annotated[str, typer.Option(help="The reason, for `turnkeeper events` and for agent0.")] = "",
) -> None:
    """Restart agent-runtime: check that it can start, stop it, start it, and hand over notes to agent0, your agent.

    The runner and the supervisor keep running, and turns continue from their checkpoints. If the check finds that the
    runtime could not start again, the command stops nothing. The restart continues if you interrupt this command.

    Example: turnkeeper restart --reason "new key" --handoff notes.txt
    """
    place = home()
    orders = read_orders(place)
    if orders is None:
        raise Conflict("the daemons are not supervised", where=str(place.root), hint="start it with: turnkeeper up")
    if daemons.AGENT_RUNTIME not in orders.wanted:
        raise Conflict("agent-runtime does not run on this machine", where="[node] roles", hint="restart it elsewhere")
    notes = read_text(handoff, LONGEST_NOTES) if handoff is not None else ""
    said = "\n".join(filter(None, [reason, notes]))
    check_text(said)
    if len(said.encode()) > LONGEST_NOTES:
        raise InvalidInput(f"with the notes has more than {LONGEST_NOTES} bytes", where="--reason")
    if is_under_way(place):
        raise Conflict("a restart is in progress", where=str(place.root), hint="see: turnkeeper status")
    clock, entropy = SystemClock(), SystemEntropy()
    record_act(place.logs, "turnkeeper", "turnkeeper restart", "", clock, reason=reason)
    id_ = f"{clock.now().astimezone(UTC):%Y%m%dT%H%M%S.%fZ}-planned-{entropy.hex(4)}"
    text = import_module("turnkeeper.constellation.inspect.status").handoff_text(place, said)
    at = rfc3339(clock.now())
    markers.write_marker(markers.REQUEST.at(place), {"id": id_, "text": text, "at": at, "by": "author", "tries": 0})
    supervisor = daemons.process_of(place, daemons.SUPERVISOR)
    if supervisor is not None:
        supervisor.send_signal(signal.SIGHUP)
    else:
        Watchdog(place, clock=clock, entropy=entropy, environ=os.environ).tick()
    with spinner("restarting"):
        ended = _await(place, id_, clock)
    note(f"agent-runtime restarted (pid {ended.get('pid')}); turns that it interrupted continue where they were")


def model(
    name: Annotated[str | None, typer.Argument(help="offline, or a name such as openai:gpt-5.")] = None,
    base_url: setup.AddressOption = None,
    key_file: setup.KeyFileOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the model, or use another: check it, write it into config.toml, and restart agent-runtime if it runs.

    The key is written into .env in the home, which only you can read. On a terminal you are asked for a missing key.

    Example: turnkeeper model openai:gpt-5
    """
    place = home()
    if (name, base_url, key_file) != (None, None, None):
        setup.set_model(place, setup.chosen_model(place, name, base_url, key_file))
        if daemons.process_of(place, daemons.AGENT_RUNTIME) is not None:
            restart(None)
    present = load_settings(place).model.model_dump()
    lines = [(key, str(value)) for key, value in present.items() if value != ""]
    show_record(present, output, name_key="name", lines=lines)


def _await(place: Home, id_: str, clock: SystemClock) -> dict[str, Any]:
    """Return the status of a restart after its end. Raises TurnkeeperError if the restart was refused or abandoned."""
    if not clock.poll(lambda: not is_under_way(place), timeout_s=_PATIENCE_S, every_s=daemons.POLL_S):
        raise TurnkeeperError("the restart is still in progress", hint="see: turnkeeper status")
    says = markers.read_marker(markers.STATUS.at(place, id=id_))
    found = says if isinstance(says, dict) else {}
    if found.get("phase") not in {"up-detected", "verified"}:
        why = found.get("error") or "it was abandoned"
        if found.get("phase") == "refused":
            raise TurnkeeperError(f"the restart was refused, and everything continues as before: {why}")
        raise TurnkeeperError(f"the restart failed: {why}", hint="see: turnkeeper status")
    return found


def escalate(text: Annotated[str, typer.Argument(help="The text of the alert.")]) -> None:
    """Send yourself an alert by the page command or the webhook of [watchdog]. The command needs no daemon.

    If both fail, the exit code is 1. The alert is kept: `turnkeeper status` shows it, and the supervisor retries.

    Example: turnkeeper escalate "the build is red since Monday"
    """
    place = home()
    check_alert(text)
    clock = SystemClock()
    routes = up_down.orders_of(load_settings(place)).routes
    if not (routes.command or routes.webhook):
        hint = "set [watchdog] command or webhook in config.toml"
        raise InvalidInput("there is no route to send it", where="escalate", hint=hint)
    place.create()
    with spinner("sending"):
        sent = send_now(place, text, routes, os.environ, clock)
    record_act(place.logs, "turnkeeper", "escalate", "sent" if sent else "kept", clock)
    if not sent:
        hint = "it is kept, and the supervisor tries again at each tick: turnkeeper status"
        raise TurnkeeperError("both the command and the webhook failed", hint=hint)
    note("sent")


_STATUS = columns(
    "PROCESS STATE #PID SINCE +LOG",
    since=lambda row: when(datetime.fromisoformat(row["since"])) if row["since"] else "-",
)


@console.watched
def status(output: OutputOption = Output.TABLE) -> None:
    """Show whether the processes run, what is wrong or paused, and what waits for your decision.

    If machines share a store, all of them are listed, with the envelopes that wait for a runtime. The state of another
    machine has no effect on the exit code.

    Exits with 6 if a process that should run does not run or answer, or if the watchdog found a problem that persists.
    Before the first `turnkeeper up` and after `down`, no process is supposed to run, and the exit code is 0.

    Example: turnkeeper status -o json
    """
    place = home()
    found = [*condition.findings(place, SystemClock().now().timestamp()), *condition.readable_keys(place)]
    found += condition.outdated(place)
    asking = import_module("turnkeeper.constellation.inspect.status")  # it loads gRPC, which other commands do not need
    supervised = read_orders(place) is not None
    rows = asking.rows(place, found, supervised=supervised)
    shared, away = _shared(place)
    _show_status(rows, shared, output, "\n".join(filter(None, [f"logs: {place.logs}", asking.decisions(place)])))
    found += [*asking.unreachable(place, rows), *away]
    people = output in {Output.TABLE, Output.WIDE}
    for finding in found if people else ():
        note(console.for_people(str(finding)))
    missing = any(row["state"] != "running" for row in rows)
    idle = not supervised and all(row["state"] == "stopped" for row in rows)
    if people and any(row["state"] == "stopped" for row in rows) and not place.waits_for_takeover():
        what = "nothing is supposed to run; start it with" if idle else "some processes do not run; start them with"
        note(f"{what}: turnkeeper up")
    if not idle and (missing or any(finding.degraded for finding in found)):
        raise typer.Exit(EXIT_DEGRADED)


def _shared(place: Home) -> tuple[Any, list[Finding]]:
    """Return the state of the shared database, if there is one, and its problems."""
    try:
        if not (url := load_settings(place).store.shared_url):
            return None, []
        shared = import_module("turnkeeper.storage.nodes").read_cluster(url)
        return shared, required("findings of machines", shared)
    except TurnkeeperError as error:
        return None, [Finding(process="", what=f"{error.where}: {error.what}", fix=error.hint, degraded=False)]


def _show_status(rows: list[dict[str, Any]], shared: Any, output: Output, footer: str) -> None:
    """Show the processes of this machine, then the machines that share its store, and the waiting envelopes."""
    if shared is None:
        show_rows(rows, _STATUS, output, name_key="process", footer=footer)
        return
    machines, shown, queue = required("machines", shared)
    if output in {Output.JSON, Output.JSONL}:
        show_rows([*rows, *machines, {"queue": "envelopes", **shared.queue}], _STATUS, output, name_key="process")
        return
    show_rows(rows, _STATUS, output, name_key="process")
    if output is not Output.NAME:
        print()
        show_rows(machines, shown, output, name_key="node", footer=queue)
        note(footer)


_CHECKS = columns("CHECK STATE FINDING FIX", finding=lambda row: console.for_people(str(row["finding"] or "-")))


def _in_words(row: Mapping[str, Any]) -> str:
    """Return the result of a check in one line and the fix in another, because a table would cut both."""
    found = console.for_people(str(row["finding"]))
    return "\n    ".join(
        filter(None, [f"{row['state']:<6}  {row['check']}{f': {found}' if found else ''}", row["fix"]])
    )


def doctor(output: OutputOption = Output.TABLE) -> None:
    """Check the installation, the processes and the stores, and say how to fix each problem.

    The command changes nothing. Exits with 6 if something is broken.

    Example: turnkeeper doctor
    """
    place = home()
    rows: list[dict[str, Any]] = []
    for check in condition.examine(place, SystemClock().now().timestamp()):
        for found in check.findings:
            what = f"{found.process}: {found.what}" if found.process else found.what
            state = "broken" if found.degraded else "note" if found.fix or check.name != "database" else "ok"
            rows.append({"check": check.name, "state": state, "finding": what, "fix": found.fix})
        if not check.findings:
            rows.append({"check": check.name, "state": "ok", "finding": "", "fix": ""})
    show_rows(rows, _CHECKS, output, name_key="check", in_words=_in_words if sys.stdout.isatty() else None)
    if any(row["state"] == "broken" for row in rows):
        raise typer.Exit(EXIT_DEGRADED)


_POLL_S = 0.2
_BLOCK_BYTES = 64 * 1024


def last_lines(path: Path, count: int) -> tuple[list[str], int]:
    """Return the last `count` whole lines of a log, and the offset after them. Read only as much as necessary."""
    with path.open("rb") as file:
        at = file.seek(0, 2)
        data = b""
        while at > 0 and data.count(b"\n") <= count:
            step = min(_BLOCK_BYTES, at)
            at -= step
            file.seek(at)
            data = file.read(step) + data
    whole, _, _ = data.rpartition(b"\n")
    lines = whole.split(b"\n") if whole else []
    end = at + len(whole) + (1 if whole or data.startswith(b"\n") else 0)
    return [line.decode(errors="replace") for line in lines[max(0, len(lines) - count) :]], end


def follow(folder: Path, ends: dict[Path, int], clock: SystemClock) -> Iterator[tuple[Path, str]]:
    """Yield (log, line) for each whole line that is added, until cancelled. If a log became shorter, start over."""
    while True:
        for path in sorted(folder.glob("*.log")):
            start = ends.get(path, 0)
            with path.open("rb") as file:
                if file.seek(0, 2) < start:
                    start = 0
                file.seek(start)
                whole, newline, _ = file.read().rpartition(b"\n")
            ends[path] = start + len(whole) + len(newline)
            for line in whole.split(b"\n") if newline else ():
                yield path, line.decode(errors="replace")
        clock.block(_POLL_S)


def logs(
    follow_: Annotated[bool, typer.Option("-f", "--follow", help="Keep printing new lines.")] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="How many lines of each process.")] = 20,
) -> None:
    """Print the log output of the processes, each line with the name of its process.

    Example: turnkeeper logs -f
    """
    place = home()
    ends = {}
    for path in sorted(place.logs.glob("*.log")):
        said, ends[path] = last_lines(path, lines)
        for line in said:
            _say(path.stem, line)
    if follow_:
        for path, line in follow(place.logs, ends, SystemClock()):
            _say(path.stem, line)


def _say(process: str, line: str) -> None:
    print(f"{process}: {plain(line)}", flush=True)


watchdog = App("Check and repair the processes.")


@watchdog.command()
def tick() -> None:
    """Check every process once, restart the processes that died, and start the supervisor if it does not run.

    It is safe while the supervisor runs. A timer can call it as a heartbeat. Exits with 6 if something is broken.

    Example: turnkeeper watchdog tick
    """
    place = home()
    clock = SystemClock()
    if read_orders(place) is None:
        note("nothing is supposed to run; start it with: turnkeeper up")
        return
    if daemons.process_of(place, daemons.SUPERVISOR) is None:
        note(f"supervisor started (pid {daemons.spawn(place, daemons.SUPERVISOR, os.environ)})")
    else:
        Watchdog(place, clock=clock, entropy=SystemEntropy(), environ=os.environ).tick()
    bad = [finding for finding in condition.findings(place, clock.now().timestamp()) if finding.degraded]
    for finding in bad:
        note(str(finding))
    if bad:
        raise typer.Exit(EXIT_DEGRADED)


@watchdog.command()
def suspend(
    duration: Annotated[str, typer.Argument(help="How long, such as 30m or 2h.")] = "",
    clear: Annotated[bool, typer.Option(help="End every suspension now.")] = False,
) -> None:
    """Suspend hang detection for a while, for example while a daemon is stopped in a debugger.

    Example: turnkeeper watchdog suspend 30m
    """
    place = home()
    if clear == bool(duration):
        hint = "for example: turnkeeper watchdog suspend 30m"
        raise InvalidInput("give either a duration or --clear", where="watchdog suspend", hint=hint)
    if clear:
        for path in markers.found(place, markers.QUIET):
            markers.clear_marker(path)
        note("hang detection is on again")
        return
    until = SystemClock().now() + parse_duration(duration)
    place.create()
    epoch = -(-to_us(until) // 1_000_000)
    markers.write_marker(markers.QUIET.at(place, epoch=str(epoch)), {"until": epoch})
    note(f"hang detection is suspended until {when(datetime.fromtimestamp(epoch, UTC))}")
