"""The counters and gauges of the runner. `docs/reference/metrics.md` documents them for users."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from task_runner.daemon.assembly import Runner
from task_runner.daemon.reads import PROCESS
from task_runner.model.task import OPEN, FireKind, Outcome
from turnkeeper.bus.event_log import count_events
from turnkeeper.clock import Clock
from turnkeeper.config.home import Home
from turnkeeper.config.settings import Settings
from turnkeeper.rpc.metrics import OF_ALL, Counter, Exporter, Gauge, Histogram, Source, bytes_of, restarts

_CONNECTED = Gauge("turnkeeper_runtime_connected", "1 while the agent runtime accepts fires from this runner, else 0")
_OPEN = Gauge("turnkeeper_fires_open", f"fires that have not ended, by state{OF_ALL}", "state")
_TASKS = Gauge("turnkeeper_tasks", f"tasks that are not deleted{OF_ALL}")
_SCHEDULED = Gauge("turnkeeper_tasks_scheduled", f"tasks with a time when they are due or checked again{OF_ALL}")
_OVERDUE = Gauge("turnkeeper_fires_overdue_seconds", f"how long the first fire that could be sent has waited{OF_ALL}")
_STORE = Gauge("turnkeeper_store_bytes", "size of a store on disk, if it is a file", "store")
_LOST = Gauge(
    "turnkeeper_machines_lost", f"machines that share the store and have not been seen for a minute or longer{OF_ALL}"
)
_TROUBLE = Gauge("turnkeeper_machine_trouble", "1 while machine trouble blocks the process, else 0")


_ENDS = sorted(set(Outcome) - OPEN - {Outcome.PRUNED})


class Counters:
    """The counters of the runner."""

    def __init__(self) -> None:
        self.fires = Counter("turnkeeper_fires", "entries of the ledger that have ended", "outcome", of=_ENDS)
        self.committed = Counter(
            "turnkeeper_fires_committed", "fires that were planned and are on disk", "kind", of=FireKind
        )
        self.missed = Counter("turnkeeper_scheduled_times_skipped", "scheduled times that a policy or a pause skipped")
        self.refusals = Counter("turnkeeper_fire_refusals", "fires that the agent runtime refused; each is tried again")
        self.quarantined = Counter("turnkeeper_tasks_quarantined", "tasks that could not be planned or were refused")
        self.lateness = Histogram(
            "turnkeeper_fire_lateness_seconds",
            "from the due time of a fire to its first sending",
            "catch_up",
            of=("false", "true"),
        )
        self.all = (self.fires, self.committed, self.missed, self.refusals, self.quarantined, self.lateness)

    def sent(self, batch: Iterable[tuple[float, bool]]) -> None:
        """Count fires that were just sent for the first time, each with its lateness and whether it was caught up."""
        for late_s, caught_up in batch:
            self.lateness.add(max(0.0, late_s), "true" if caught_up else "false")

    def skipped(self, fields: Mapping[str, Any]) -> None:
        """Count an entry that does not fire."""
        self.fires.add("skipped")
        self.missed.add(by=fields["count"])

    def events(self) -> dict[str, Any]:
        """Return the counting functions, by event name."""
        return {
            "fire.settled": lambda fields: self.fires.add(fields["outcome"]),
            "fire.skipped": self.skipped,
            "fire.committed": lambda fields: self.committed.add(fields["kind"]),
            "fire.refused": lambda _fields: self.refusals.add(),
            "task.quarantined": lambda _fields: self.quarantined.add(),
        }


def export(home: Home, runner: Runner, settings: Settings, clock: Clock) -> Exporter | None:
    """Return the exporter of the runner's metrics, not yet serving; None if metrics are disabled."""
    if not settings.metrics.enabled:
        return None
    counted = Counters()
    count_events(runner.log, counted.events())
    runner.dispatcher.on_sent = counted.sent

    async def read() -> Sequence[Any]:
        found = await runner.store.read(lambda session: session.counts())
        due = found.next_ready_at
        overdue_s = 0.0 if due is None else max(0.0, (clock.now() - due).total_seconds())
        return (
            _OPEN.of({(outcome.value,): found.open_fires.get(outcome.value, 0) for outcome in sorted(OPEN)}),
            _TASKS.of(found.tasks),
            _SCHEDULED.of(found.scheduled),
            _OVERDUE.of(overdue_s),
            _STORE.of({} if runner.store.is_shared else {("schedules",): bytes_of(home.schedules_db)}),
        )

    def known() -> Sequence[Any]:
        return (
            _CONNECTED.of(runner.dispatcher.connected),
            _LOST.of(runner.beat.lost if runner.beat else 0),
            _TROUBLE.of(bool(runner.trouble())),
        )

    def unready() -> str:
        return runner.trouble() or ("" if runner.dispatcher.connected else "agent-runtime is not connected")

    source = Source([*counted.all, restarts(home.run, PROCESS)], read, unready, known)
    return Exporter(source, runner.log, path=home.http(PROCESS), port=settings.metrics.task_runner_port)
