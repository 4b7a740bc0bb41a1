"""`turnkeeper cordon`, `uncordon` and `drain`: a machine takes no new turns, and finishes those that run.

The cordon of a home on files is a file, and its runtime confirms in another file that no turn runs. If machines share
a database, a cordon is a row there, and the runtime confirms with its heartbeat. Both outlive every process.
"""

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from turnkeeper.bus.event_log import record_act
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.config.settings import load_settings
from turnkeeper.console import home, note, status
from turnkeeper.constellation.supervisor import daemons
from turnkeeper.constellation.supervisor.markers import clear_marker
from turnkeeper.constellation.supervisor.watchdog import read_orders
from turnkeeper.errors import Conflict, NotFound, TurnkeeperError
from turnkeeper.storage import nodes
from turnkeeper.storage.files import replace_whole
from turnkeeper.times import parse_duration, rfc3339

POLL_S = 0.5
MOST_NAMED = 20
_RUNTIME = daemons.AGENT_RUNTIME
MachineArgument = Annotated[
    str, typer.Argument(help="The machine's name in `turnkeeper status`; by default this machine.")
]


class Here:
    """The cordon of a home on files."""

    def __init__(self, place: Home) -> None:
        self._place = place

    def begin(self) -> None:
        if not self._place.cordon.exists():
            replace_whole(self._place.cordon, _now().encode())

    def end(self) -> bool:
        """Return False if there was no cordon."""
        was = self._place.cordon.exists()
        clear_marker(self._place.cordon)
        return was

    def is_at_rest(self) -> bool:
        """Return whether no turn runs and none can begin. Raises Conflict if the cordon was ended."""
        since = _read(self._place.cordon) or _ended()
        process = daemons.process_of(self._place, _RUNTIME)
        if process is None:
            return read_orders(self._place) is None
        return _read(self._place.cordoned) == f"{since} {process.pid}"

    def turns(self) -> list[str]:
        """Return the turns that run."""
        # Import gRPC here, because `status` reads `findings` without it.
        wire = import_module("turnkeeper.v1.agent_runtime_pb2")
        runtime = import_module("turnkeeper.rpc.channel").Caller(self._place, via="turnkeeper/cli", deadline_s=5.0)
        try:
            found = runtime.ListTurns(wire.ListTurnsRequest(status="running", limit=MOST_NAMED)).turns
        finally:
            runtime.close()
        return [_named(turn.turn_id, turn.task_name, turn.channel) for turn in found]


class Shared:
    """The cordon of a machine that shares a database."""

    def __init__(self, url: str, name: str) -> None:
        self._url, self._name, self._key = url, name, f"{nodes.CORDONED} {name}"

    def begin(self) -> None:
        self._run(nodes.CORDON, self._key, _now())

    def end(self) -> bool:
        """Return False if there was no cordon."""
        return bool(self._run("DELETE FROM runtime.meta WHERE key = %s", self._key))

    def is_at_rest(self) -> bool:
        """Return whether no turn runs and none can begin. Raises Conflict if the cordon was ended."""
        since = self._run("SELECT value FROM runtime.meta WHERE key = %s", self._key) or _ended()
        found = nodes.read_cluster(self._url).processes
        own = [row for row in found if (row["name"], row["role"]) == (self._name, _RUNTIME.name)]
        live = [row["facts"].get(nodes.CORDONED) for row in own if row["state"] != "stale"]
        return all(said == since[0]["value"] for said in live) and not any(row["threads"] for row in own)

    def turns(self) -> list[str]:
        """Return the turns that run."""
        return [_named(**row) for row in self._run(_RUNNING, self._name, MOST_NAMED)]

    def is_known(self) -> bool:
        return bool(self._run(_KNOWN, self._name, self._key))

    def _run(self, query: str, *values: Any) -> Any:
        with nodes.connected(self._url) as connection:
            done = connection.execute(query.encode(), values)
            return done.fetchall() if done.description else done.rowcount


_RUNNING = """SELECT turn_id, task_name, channel FROM runner.nodes n JOIN runtime.threads USING (owner)
    JOIN runtime.turns USING (thread_id) WHERE n.name = %s AND owner <> '' AND status = 'running'
    ORDER BY number LIMIT %s"""
_KNOWN = "SELECT 1 FROM runner.nodes WHERE name = %s UNION ALL SELECT 1 FROM runtime.meta WHERE key = %s"


def _ended() -> NoReturn:
    raise Conflict("takes turns again: meanwhile, another command ended the cordon", hint="see: turnkeeper status")


def _read(path: Path) -> str:
    """Return a file's text, or an empty text if there is no file."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


def _now() -> str:
    return rfc3339(SystemClock().now())


def _named(turn_id: str, task_name: str, channel: str) -> str:
    return f"{turn_id} ({task_name or 'a message'}, in {channel})"


def _cordon_of(place: Home, machine: str) -> tuple[Here | Shared, str]:
    """Return a machine's cordon and its name. Raises NotFound if no machine has the name."""
    settings = load_settings(place)
    own = nodes.name_of(settings.node)
    name = machine or own
    if not (url := settings.store.shared_url):
        if name != own:
            raise NotFound("this home is on one machine", where=name, hint="leave out the name")
        return Here(place), name
    found = Shared(url, name)
    if name != own and not found.is_known():
        raise NotFound("no machine has this name", where=name, hint="see: turnkeeper status")
    return found, name


def cordon(machine: MachineArgument = "") -> None:
    """Let a machine take no new turns; turns that run there continue to their end.

    Fires, messages and decisions wait, or go to other machines that share the database. Cancels work. The cordon
    stays until `turnkeeper uncordon`, also over restarts.

    Example: turnkeeper cordon garage
    """
    found, name = _begin("cordon", machine)
    count = len(found.turns()) if not found.is_at_rest() else 0
    running = f"{'at least ' * (count == MOST_NAMED)}{count or 'no'} {'turn runs' if count < 2 else 'turns run'} there"
    note(f"{name} takes no new turns; {running}; end this with: turnkeeper uncordon {machine}".rstrip())


def uncordon(machine: MachineArgument = "") -> None:
    """Let a machine take turns again.

    Example: turnkeeper uncordon garage
    """
    place = home()
    found, name = _cordon_of(place, machine)
    was = found.end()
    record_act(place.logs, "turnkeeper", "turnkeeper uncordon", name, SystemClock())
    note(f"{name} takes turns again" if was else f"{name} was not cordoned")


def drain(
    machine: MachineArgument = "",
    deadline: Annotated[str, typer.Option(help="How long to wait, such as 10m; by default without a limit.")] = "",
) -> None:
    """Cordon a machine, and wait until no turn runs there.

    Turns that wait for your decision do not run. If turns still run at the deadline, they are listed, and the exit
    code is 1. The machine stays cordoned in both cases. If `uncordon` ends the cordon meanwhile, the exit code is 4.

    Example: turnkeeper drain garage --deadline 10m
    """
    limit_s = parse_duration(deadline, field="--deadline").total_seconds() if deadline else float("inf")
    found, name = _begin("drain", machine)
    with status(f"waiting until no turn runs on {name}"):
        done = SystemClock().poll(found.is_at_rest, timeout_s=limit_s, every_s=POLL_S)
    if not done:
        left = ", ".join(found.turns()) or "none is recorded, but its agent-runtime has not confirmed the cordon"
        again = f"turnkeeper drain {machine}".rstrip()
        raise TurnkeeperError(f"turns still run on {name}: {left}", hint=f"to wait longer, run: {again}")
    note(f"no turn runs on {name}, and it takes no new ones until: turnkeeper uncordon {machine}".rstrip())


def _begin(command: str, machine: str) -> tuple[Here | Shared, str]:
    place = home()
    found, name = _cordon_of(place, machine)
    found.begin()
    record_act(place.logs, "turnkeeper", f"turnkeeper {command}", name, SystemClock())
    return found, name


def findings(place: Home) -> list[tuple[str, str]]:
    """Return a finding while a home on files is cordoned. A shared database shows this for each machine."""
    since = _read(place.cordon)
    return [(f"takes no new turns since {since}", "to take turns again, run: turnkeeper uncordon")] if since else []
