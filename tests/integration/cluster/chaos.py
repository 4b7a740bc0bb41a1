"""Mixed faults of a cluster under a mixed load; then what was promised is held against what happened.

Run as `python -m tests.integration.cluster.chaos --minutes 20 --seed N`, or `make chaos-cluster MINUTES=20`; exits with 1
if something was lost, doubled, early, out of scope or at once on a thread. Four machines, each a home with a task-runner
and an agent-runtime, share a PostgreSQL of this run's own. Every few seconds something happens to one of them, or to the
server: kill -9, SIGSTOP past the lease and SIGCONT, an end in good order, also in the midst of a start, connections that
are ended, stall, are slow or used up, processes of the server that are stopped, a restart of the database. Meanwhile
tasks fire each second, catch up, loop, wait for approvals, are edited, run by hand and triggered by events, and messages
come and turns are cancelled by way of each machine. One machine hears no notifications, two have one name, and one's
clock is hours ahead and its category another. `--keep` leaves homes for a look.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg

from examples.demo.postgres import Server, find_binaries
from tests.integration.cluster import checking
from tests.integration.cluster.checking import Asked, Left
from tests.support.constellation import Constellation
from tests.support.proxy import Proxy
from tests.support.seeded_entropy import SeededEntropy
from turnkeeper.bus.event_log import read_events
from turnkeeper.client import Turnkeeper
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.errors import NotFound, TurnkeeperError
from turnkeeper.rpc.channel import Caller, is_serving
from turnkeeper.v1.schedules_pb2 import EmitEventRequest

MACHINES, LISTENERS = 4, 16
RUNNER, RUNTIME = "task-runner", "agent-runtime"
MODULES = {RUNNER: ("task_runner.daemon",), RUNTIME: ("agent_runtime.daemon", "--home")}
FAKED = {"FAKETIME": "+5h", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
PAST_LEASE_S = 17.0
QUIET_S = 8.0
START_S, SETTLE_S = 30.0, 75.0  # so that twenty minutes end within twenty-two
ASKING = "Summarise the garden, then remember: the pump was replaced"
CONFIG = """
[store]
url = "{url}"
notifications = {hears}
[node]
name = "machine-{name}"
[notify]
command = "echo $TURNKEEPER_EVENT $TURNKEEPER_INTERRUPT_ID >> {told}"
"""
EVERY_S = {"each-second": 1, "one-for-all": 1, "skipping": 2, "queued": 2, "asks": 10, "limited": 1}
TASKS: dict[str, tuple[str, ...]] = {
    "each-second": ("--catch-up", "run-all"),
    "one-for-all": ("--catch-up", "run-once", "--grace", "1s"),
    "skipping": ("--catch-up", "skip", "--grace", "1s"),
    "queued": ("--catch-up", "run-all", "--overlap", "queue", "--thread", "one-thread"),
    "asks": ("--prompt", ASKING),
    "limited": ("--catch-up", "run-all", "--max-fires", "40"),
}
MOST = {"limited": 40}
MOST_CONNECTIONS = 120
END_SOME = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name <> 'chaos' AND random() < %s"
)
SERVER = {
    "max_connections": str(MOST_CONNECTIONS),
    "synchronous_commit": "on",
    "autovacuum": "on",
    "autovacuum_naptime": "20s",
}
CLOCK = SystemClock()


class Machine:
    """A home whose two daemons are processes that can be killed and stopped, with its own way to the database.

    Attributes:
        ended: what daemons said that ended by themselves.
    """

    def __init__(self, number: int, folder: Path, server: Server, url: str) -> None:
        self.home = Home(root=folder / f"m{number}")
        self.home.create()
        socket = folder / f"s{number}"
        socket.mkdir()
        self.proxy = Proxy(socket, server.folder)
        self.name = f"machine {number}"
        self.told = folder / "told"
        how = {"hears": str(number != 2).lower(), "name": min(number, 3), "told": self.told}
        self.home.config.write_text(CONFIG.format(url=self.proxy.url(url), **how))
        self.is_odd = number == MACHINES
        if self.is_odd:
            shipped = (Path(__file__).parents[3] / "categories" / "loop.toml").read_text()
            (self.home.categories / "loop.toml").write_text(shipped.replace("tool_calls = 50", "tool_calls = 49"))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.suffers: set[str] = set()  # roles that are stopped, or whose connections stall
        self.ended: list[str] = []

    def start(self, role: str) -> None:
        environ = os.environ | {"TURNKEEPER_OFFLINE_DELAY_S": "0.05"}
        module, *rest = MODULES[role]
        command = [sys.executable, "-P", "-m", module, *rest, str(self.home.root)]
        if self.is_odd and (library := next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)):
            environ |= FAKED | {"LD_PRELOAD": str(library)}
        with self.log(role).open("a") as said:
            self.processes[role] = subprocess.Popen(command, env=environ, stdout=said, stderr=said)

    def log(self, role: str) -> Path:
        return self.home.root / f"{role}.stderr"

    def watch(self) -> None:
        """Start again what has ended, as a supervisor would."""
        for role, process in self.processes.items():
            if (code := process.poll()) is not None:
                if code not in {-signal.SIGKILL, 0}:
                    last = self.log(role).read_text().strip().splitlines()[-1:]
                    self.ended.append(f"{role} of {self.name} ended with {code}: {''.join(last)}")
                self.start(role)

    def serves(self) -> bool:
        return all(is_serving(self.home.socket(role)) for role in self.processes)

    def signal(self, role: str, number: int) -> None:
        self.processes[role].send_signal(number)

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.proxy.close()


class Load(threading.Thread):
    """What programs ask of one machine, one thing after the other, until the end."""

    def __init__(self, machine: Machine, seed: int) -> None:
        super().__init__(daemon=True)
        self.asked: list[Asked] = []
        self.trouble: list[str] = []
        self.over = threading.Event()
        self._machine, self._draw, self._number = machine, SeededEntropy(seed), 0
        how = {"patience": timedelta(seconds=3), "timeout": timedelta(seconds=5)}
        self._client = Turnkeeper(machine.home.root, program="chaos", **how)  # type: ignore[arg-type]
        self._runner = Caller(machine.home, via="chaos/api")

    def run(self) -> None:
        acts = (self.message, self.message, self.event, self.run_now, self.decide, self.decide, self.cancel, self.edit)
        while not self.over.wait(self._draw.uniform(0.3, 1.2)):
            act = acts[int(self._draw.uniform(0, len(acts)))]
            try:
                act()
            except TurnkeeperError:
                continue  # the machine is stopped, or cut off; what it was asked for was not answered
            except Exception as error:  # noqa: BLE001  what a program would see as a bug
                self.trouble.append(f"{act.__name__}: {type(error).__name__}: {error}")

    def message(self) -> None:
        text, channel = (
            f"search: compost {self._next()}\nremember: it is turned",
            f"chat-{int(self._draw.uniform(0, 3))}-{self._number // 40}",
        )
        self._ask("message", text, lambda: self._client.send(channel, text))

    def event(self) -> None:
        event = self._next()
        request = EmitEventRequest(name=f"demo-{self._number % LISTENERS}", event_id=event)
        self._ask("event", event, lambda: self._runner.EmitEvent(request))

    def run_now(self) -> None:
        request = self._next()
        self._ask("run", request, lambda: self._client.run_task("by-hand", request_id=request))

    def decide(self) -> None:
        for asked in self._client.list_approvals()[:3]:
            decision: Any = "approve" if self._draw.uniform(0, 1) < 0.8 else "reject"
            with suppress(NotFound):
                how = {"said": decision}
                self._ask("decision", asked.interrupt_id, lambda a=asked, d=decision: self._client.decide(a, d), **how)

    def cancel(self) -> None:
        turn = next(iter(self._client.list_fires(outcome="running", limit=1)), None)
        if turn is not None and turn.turn_id:
            self._ask("cancel", turn.turn_id, lambda: self._client.cancel_turn(turn.turn_id, "by the load"))

    def edit(self) -> None:
        self._client.update_task("edited", prompt=f"Summarise the suppliers {self._next()}.")

    def _next(self) -> str:
        self._number += 1
        return f"{self._machine.home.root.name}-{self._number}"

    def _ask(self, what: str, key: str, call: Callable[[], Any], said: str = "") -> None:
        self.asked.append(Asked(what=what, key=key, answered=False, said=said))
        call()
        self.asked[-1] = Asked(what=what, key=key, answered=True, said=said)


class Chaos:
    """Faults on a cluster; the same seed draws the same faults in the same order."""

    def __init__(self, folder: Path, seed: int) -> None:
        binaries = find_binaries()
        assert binaries is not None, "PostgreSQL is not installed: make test-services"
        self.server = Server(binaries, SERVER)
        self.url = self.server.create()
        self.machines = [Machine(number, folder, self.server, self.url) for number in range(1, MACHINES + 1)]
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.ended: Counter[tuple[str, str]] = Counter()
        self._frozen: list[int] = []
        self._has_none_left = False  # of the server's connections
        self._draw = SeededEntropy(seed)
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._loads = [Load(machine, seed * 100 + number) for number, machine in enumerate(self.machines)]

    def begin(self) -> None:
        """Start everything, and a load of every kind."""
        for machine in self.machines:
            for role in MODULES:
                machine.start(role)
        if not CLOCK.poll(
            lambda: all(machine.serves() for machine in self.machines), timeout_s=START_S * 4, every_s=0.1
        ):
            raise AssertionError("".join(m.log(role).read_text()[-500:] for m in self.machines for role in MODULES))
        where = Constellation(self.machines[0].home)
        for name, options in TASKS.items():
            where.create(name, "--every", f"{EVERY_S[name]}s", *options, channel=name)
        where.create("edited", "--every", "3s", channel="edited")
        where.create("by-hand", "--cron", "0 7 * * *", channel="by-hand")
        for number in range(LISTENERS):  # none of them takes as many in an hour as would be a storm
            where.create(f"listens-{number}", "--on", f"demo-{number}", channel=f"listens-{number % 3}")
        where.command("task-runner", "loop", "create", "3s", "Say what is new", "--name", "loops")
        for load in self._loads:
            load.start()

    def go_on(self, minutes: float, every_s: float) -> None:
        """Do something to the cluster every few seconds, for so long."""
        began, told = CLOCK.monotonic(), 0.0
        until, at = began + minutes * 60, began + every_s
        while (now := CLOCK.monotonic()) < until:
            for due, end in [each for each in self._later if each[0] <= now]:
                self._later.remove((due, end))
                end()
            for machine in self.machines:
                machine.watch()
            if now >= at:
                at = now + self._draw.uniform(0.5, 1.5) * every_s
                self.fault()
            if now - told > 20:
                told = now
                self.tell(f"{now - began:4.0f} s")
            CLOCK.block(0.1)

    def fault(self) -> None:
        """Do one thing, to a machine to which nothing lasting is done at the moment, or to the server."""
        kinds = (
            *[self.kill] * 6, *[self.stop] * 3, *[self.end_connections] * 3, *[self.stall] * 2, self.cut, self.drain,
            self.restart_fast, self.restart_immediate, self.freeze, self.slow, self.use_up, self.end_starts,
        )  # fmt: skip
        kinds[int(self._draw.uniform(0, len(kinds)))]()

    def kill(self) -> None:
        machine, role = self._one()
        machine.signal(role, signal.SIGKILL)
        self._count(f"kill -9 of a {role}")

    def drain(self) -> None:
        machine, role = self._one()
        if role not in machine.suffers:
            machine.signal(role, signal.SIGTERM)
            self._count(f"SIGTERM to a {role}")

    def stop(self) -> None:
        machine, role = self._one()
        if role in machine.suffers:
            self.kill()
            return
        machine.suffers.add(role)
        process = machine.processes[role]
        process.send_signal(signal.SIGSTOP)
        self._count(f"SIGSTOP past the lease to a {role}")

        def wake() -> None:
            process.send_signal(signal.SIGCONT)
            machine.suffers.discard(role)

        self._after(self._draw.uniform(PAST_LEASE_S, PAST_LEASE_S + 5), wake)

    def stall(self) -> None:
        machine, _ = self._one()
        if "network" in machine.suffers:
            self.kill()
            return
        machine.suffers.add("network")
        machine.proxy.stall()
        self._count("a machine's connections stall")

        def flow() -> None:
            machine.proxy.go_on()
            machine.suffers.discard("network")

        self._after(self._draw.uniform(2, PAST_LEASE_S + 3), flow)

    def cut(self) -> None:
        self._one()[0].proxy.cut()
        self._count("a machine's connections are cut")

    def slow(self) -> None:
        machine, _ = self._one()
        machine.proxy.slow(0.2)
        self._count("a machine's network is slow")
        self._after(self._draw.uniform(5, 15), lambda: machine.proxy.slow(0.0))

    def freeze(self) -> None:
        """Stop some processes of the server, with whatever locks they hold."""
        if self._has_none_left:
            self.kill()
            return
        with psycopg.connect(self.url) as sql:
            found = sql.execute("SELECT pid FROM pg_stat_activity WHERE datname = current_database()").fetchall()
        stopped = [pid for (pid,) in found if self._draw.uniform(0, 1) < 0.2]
        self._frozen += stopped
        self._signal_all(stopped, signal.SIGSTOP)
        self._count("processes of the server are stopped")
        self._after(self._draw.uniform(1, 12), self.thaw)

    def thaw(self) -> None:
        """Let all processes of the server go on, without which it does not end."""
        self._signal_all(self._frozen, signal.SIGCONT)
        self._frozen.clear()

    def use_up(self) -> None:
        """Take all connections that the server has left, and end some of the others, which cannot come back."""
        if self._has_none_left:
            self.kill()
            return
        held, self._has_none_left = [], True
        with suppress(psycopg.OperationalError):
            while len(held) < MOST_CONNECTIONS:
                held.append(psycopg.connect(self.url, application_name="chaos"))
        if held:
            held[-1].execute(END_SOME, (0.5,))
        with suppress(psycopg.OperationalError):
            while len(held) < MOST_CONNECTIONS:
                held.append(psycopg.connect(self.url, application_name="chaos"))
        self._count("connections are used up")

        def give_back() -> None:
            for connection in held:
                connection.close()
            self._has_none_left = False

        self._after(self._draw.uniform(3, 12), give_back)

    def end_starts(self) -> None:
        """Kill a process, and end the next one or two as they start."""
        machine, role = self._one()
        self._count(f"a {role} is ended while it starts")
        for _ in range(2):
            machine.signal(role, signal.SIGKILL)
            machine.processes[role].wait()
            machine.start(role)
            CLOCK.block(self._draw.uniform(0.1, 1.5))
            machine.signal(role, signal.SIGTERM)

    @staticmethod
    def _signal_all(processes: list[int], number: int) -> None:
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, number)

    def end_connections(self) -> None:
        if self._has_none_left:
            self.kill()
            return
        share = self._draw.uniform(0.05, 1.0)
        with psycopg.connect(self.url) as sql:
            sql.execute(END_SOME, (share,))
        self._count("pg_terminate_backend")

    def restart_fast(self) -> None:
        self.thaw()
        self.server.restart(immediate=False)
        self._count("restart of the database, fast")

    def restart_immediate(self) -> None:
        self.thaw()
        self.server.restart(immediate=True)
        self._count("restart of the database, immediate")

    def end(self) -> None:
        """Let everything go on undisturbed, run to its end, and hold the history against the promises."""
        for load in self._loads:
            load.over.set()
        for load in self._loads:
            load.join()
        for _, end in self._later:
            end()
        ready = self._until(lambda: all(machine.serves() for machine in self.machines), START_S * 2)
        self.wrong += [] if ready else ["a machine does not serve, long after the last fault"]
        CLOCK.block(QUIET_S)
        before = checking.read(self.url, {"tasks": BEFORE})["tasks"]
        with Turnkeeper(self.machines[0].home.root, program="chaos", patience=timedelta(seconds=20)) as client:
            for name in (*TASKS, "edited", "loops", "by-hand", *(f"listens-{number}" for number in range(LISTENERS))):
                client.disable_task(name)
            settled = self._until(lambda: self._settled(client), SETTLE_S)
        rows = checking.read(self.url)
        self.wrong += [] if settled else ["it did not settle"]
        events = sorted(self._events(), key=lambda event: event["at"])
        asked = [each for load in self._loads for each in load.asked]
        every_s = {name: step_s for name, step_s in EVERY_S.items() if name not in MOST}
        path = self.machines[0].told
        told = (
            [line for line in path.read_text().splitlines() if line.startswith("interrupt ")] if path.exists() else []
        )
        left = Left(rows=rows, events=events, asked=asked, every_s=every_s, before=before, most=MOST, told=told)
        self.ended = Counter((entry["outcome"], entry["reason"][:70]) for entry in rows["ledger"])
        self.wrong += [f"{found.invariant}: {found.what}" for found in checking.violations(left)]
        self.wrong += [said for load in self._loads for said in load.trouble]
        for machine in self.machines:
            for role in MODULES:
                text = machine.log(role).read_text(errors="replace")
                if "Traceback" in text:
                    self.wrong.append(f"a traceback in {machine.log(role)}: {text[text.index('Traceback') :][:3000]}")

    def _events(self) -> list[dict[str, Any]]:
        return [event for machine in self.machines for event in read_events(machine.home.logs)]

    def _settled(self, client: Turnkeeper) -> bool:
        with suppress(TurnkeeperError):
            for asked in client.list_approvals():
                client.decide(asked, "approve")
            with psycopg.connect(self.url) as sql:
                return not any(sql.execute(query).fetchone() != (0,) for query in OPEN)  # type: ignore[misc]
        return False

    def _until(self, true: Callable[[], bool], timeout_s: float) -> bool:
        def probe() -> bool:
            for machine in self.machines:
                machine.watch()
            return true()

        return CLOCK.poll(probe, timeout_s=timeout_s, every_s=0.2) is not None

    def tell(self, when: str) -> None:
        """Say in one line how far it is."""
        with suppress(psycopg.Error), psycopg.connect(self.url) as sql:
            count = {name: sql.execute(query).fetchone()[0] for name, query in COUNTS.items()}  # type: ignore[index]
            say(f"{when}: {', '.join(f'{n} {name}' for name, n in count.items())}; {sum(self.done.values())} faults")

    def summary(self) -> str:
        asked = Counter(f"{each.what}s" for load in self._loads for each in load.asked if each.answered)
        kinds = "\n".join(f"  {count:4} {kind}" for kind, count in sorted(self.done.items()))
        what = ", ".join(f"{count} {kind}" for kind, count in asked.items())
        ended = [said for machine in self.machines for said in machine.ended]
        trail = Counter(event["event"] for event in self._events())
        named = ("lease.lost", "lease.trouble", "turn.trouble", "machine.trouble", "store.trouble")
        said = ", ".join(f"{trail[name]} {name}" for name in named)
        became = [f"  {count:4} {outcome} {reason}" for (outcome, reason), count in sorted(self.ended.items())]
        lines = [f"{sum(self.done.values())} faults:", kinds, f"asked and answered: {what}", said, *ended]
        return "\n".join([*lines, "fires became:", *became])

    def close(self) -> None:
        for machine in self.machines:
            machine.close()
        self.thaw()
        self.server.stop()

    def _one(self) -> tuple[Machine, str]:
        machine = self.machines[int(self._draw.uniform(0, MACHINES))]
        return machine, RUNTIME if self._draw.uniform(0, 1) < 0.6 else RUNNER

    def _count(self, kind: str) -> None:
        self.done[kind] += 1

    def _after(self, seconds: float, end: Callable[[], None]) -> None:
        self._later.append((CLOCK.monotonic() + seconds, end))


BEFORE = (
    "SELECT id, name, state, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS at_us"
    " FROM runner.tasks WHERE state <> 'deleted'"
)
OPEN = (
    "SELECT count(*) FROM runner.fires WHERE is_open",
    "SELECT count(*) FROM runtime.envelopes WHERE state <> 'quarantined'",
    "SELECT count(*) FROM runtime.turns WHERE status IN ('running', 'interrupted', 'paused')",
    "SELECT count(*) FROM runtime.turn_events WHERE NOT taken",
)
COUNTS = {
    "fires": "SELECT count(*) FROM runner.fires WHERE fire_id IS NOT NULL",
    "turns": "SELECT count(*) FROM runtime.turns",
    "turns over": "SELECT count(*) FROM runtime.turns WHERE ended_at_us IS NOT NULL",
    "envelopes": "SELECT count(*) FROM runtime.envelopes",
}


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(argv: list[str]) -> int:
    """Run the faults; return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description="mixed faults of a cluster, then the checker")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=float, default=7.0, help="seconds between two faults, on average")
    parser.add_argument("--keep", action="store_true", help="keep the homes")
    given = parser.parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="tk-cluster-"))
    chaos = Chaos(folder, given.seed)
    try:
        chaos.begin()
        chaos.go_on(given.minutes, given.every)
        chaos.end()
        chaos.tell("end")
        say(chaos.summary())
    finally:
        chaos.close()
        if given.keep:
            say(f"kept: {folder}")
        else:
            shutil.rmtree(folder)
    say("\n".join(chaos.wrong) or f"{given.minutes:g} minutes with seed {given.seed}: nothing lost, nothing doubled")
    return bool(chaos.wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
