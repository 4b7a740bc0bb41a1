"""Metrics of the runtime. `docs/reference/metrics.md` documents them for users."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agent_runtime.daemon.assembly import PROCESS
from agent_runtime.service.servicer import Runtime
from agent_runtime.store.turn_reads import count_waiting
from turnkeeper.bus.event_log import count_events
from turnkeeper.clock import Clock
from turnkeeper.config.home import Home
from turnkeeper.config.settings import Settings
from turnkeeper.config.surfaces import offered
from turnkeeper.rpc import metrics

_OVER = ("succeeded", "silent", "failed", "cancelled")
_DECISIONS = ("approve", "edit", "reject", "answer", "expired")
_PENDING = metrics.Gauge("turnkeeper_approvals_pending", f"approvals that wait for the author{metrics.OF_ALL}")
_OPEN = metrics.Gauge("turnkeeper_turns_open", f"turns that have not ended, by state{metrics.OF_ALL}", "state")
_DEPTH = metrics.Gauge(
    "turnkeeper_inbox_depth", "fires and messages in the inboxes of all agents, including claimed ones"
)
_QUEUED = metrics.Gauge("turnkeeper_turns_queued", "triggers that wait or run in the lanes of all threads")
_STORE = metrics.Gauge("turnkeeper_store_bytes", "size of a store on disk, if it is a file", "store")
_TROUBLE = metrics.Gauge("turnkeeper_machine_trouble", "1 while machine trouble blocks the process, else 0")


class Counters:
    """Counters of the runtime."""

    def __init__(self, steady: Callable[[], float]) -> None:
        """Start at zero; `steady` reads a monotonic clock."""
        self._steady = steady
        self._began: dict[str, float] = {}
        self.received = metrics.Counter(
            "turnkeeper_fires_received",
            "fires received; new is false for duplicates",
            "new",
            of=("true", "false"),
        )
        self.messages = metrics.Counter("turnkeeper_messages_accepted", "accepted messages of authors and agents")
        self.turns = metrics.Counter("turnkeeper_turns", "turns that ran and ended", "outcome", of=_OVER)
        self.duration = metrics.Histogram(
            "turnkeeper_turn_duration_seconds", "from a turn's start or resume to its end, its next question or a pause"
        )
        self.asked = metrics.Counter("turnkeeper_approvals_asked", "approvals requested")
        self.decided = metrics.Counter("turnkeeper_approvals_decided", "approvals decided", "decision", of=_DECISIONS)
        self.waited = metrics.Histogram(
            "turnkeeper_approval_wait_seconds", "from the request of an approval to its decision", steps=metrics.WAITS_S
        )
        self.calls = metrics.Counter(
            "turnkeeper_model_calls",
            "calls of a model's server, each attempt counted",
            "outcome",
            of=("answered", "retried", "failed"),
        )
        self.call_s = metrics.Histogram("turnkeeper_model_call_duration_seconds", "duration of a model's answer")
        self.tokens = metrics.Counter(
            "turnkeeper_tokens",
            "tokens, reported by models or estimated",
            "direction",
            "model",
        )
        self.money = metrics.Counter(
            "turnkeeper_money", "the cost of these tokens, by the prices of models, in your currency", "model"
        )
        self.set_aside = metrics.Counter(
            "turnkeeper_envelopes_quarantined", "envelopes that could not be read or processed"
        )
        self.all = (
            *(self.received, self.messages, self.turns, self.duration, self.asked, self.decided, self.waited),
            *(self.calls, self.call_s, self.tokens, self.money, self.set_aside),
        )

    def started(self, fields: Mapping[str, Any]) -> None:
        """Record when a turn began to run."""
        self._began[fields["turn_id"]] = self._steady()

    def stopped(self, fields: Mapping[str, Any]) -> None:
        """Count a turn that ended or waits, and the duration of its run."""
        began = self._began.pop(fields["turn_id"], None)
        if began is not None:
            self.duration.add(self._steady() - began)
        if fields["state"] in _OVER:
            self.turns.add(fields["state"])

    def resolved(self, fields: Mapping[str, Any]) -> None:
        """Count a decision, and the time until the decision."""
        self.decided.add(fields["decision"])
        if (waited_s := fields.get("waited_s")) is not None:
            self.waited.add(waited_s)

    def answered(self, fields: Mapping[str, Any]) -> None:
        self.calls.add("answered")
        self.call_s.add(fields["took_s"])
        self.answered_by(fields["model"], fields["tokens_in"], fields["tokens_out"])

    def answered_by(self, model: str, tokens_in: int, tokens_out: int) -> None:
        """Count the tokens of one model, and their cost."""
        used = json.dumps({model: {"tokens_in": tokens_in, "tokens_out": tokens_out}})
        self.tokens.add("input", model, by=tokens_in)
        self.tokens.add("output", model, by=tokens_out)
        self.money.add(model, by=(offered("money of tokens", used, tokens_in, tokens_out) or 0) / 1e6)

    def events(self) -> dict[str, Any]:
        return {
            "fire.received": lambda fields: self.received.add(
                "true" if fields["disposition"] == "ACCEPTED" else "false"
            ),
            "message.accepted": lambda _fields: self.messages.add(),
            "turn.started": self.started,
            "turn.stopped": self.stopped,
            "interrupt.raised": lambda _fields: self.asked.add(),
            "interrupt.resolved": self.resolved,
            "interrupt.expired": lambda fields: self.resolved({**fields, "decision": "expired"}),
            "model.answered": self.answered,
            "model.retry": lambda _fields: self.calls.add("retried"),
            "model.failed": lambda _fields: self.calls.add("failed"),
            "envelope.quarantined": lambda _fields: self.set_aside.add(),
        }


def export(home: Home, runtime: Runtime, settings: Settings, clock: Clock) -> metrics.Exporter | None:
    """Return an exporter of the runtime's metrics that does not serve yet; None if metrics are disabled."""
    if not settings.metrics.enabled:
        return None
    offered("prices of a home", home)
    counted = Counters(clock.monotonic)
    counted.answered_by(settings.model.name, 0, 0)
    count_events(runtime.log, counted.events())

    async def read() -> Sequence[Any]:
        open_turns, pending = await runtime.store.read(count_waiting)
        files = {"agent": home.agent_db, "checkpoints": home.checkpoints_db}
        stores = {} if runtime.mailboxes.is_shared else files
        return (
            _PENDING.of(pending),
            _OPEN.of({(state,): count for state, count in open_turns.items()}),
            _DEPTH.of(sum(1 for _ in runtime.mailboxes.queued())),
            _QUEUED.of(runtime.worker.waiting),
            _STORE.of({(name,): metrics.bytes_of(path) for name, path in stores.items()}),
        )

    def known() -> Sequence[Any]:
        return (_TROUBLE.of(bool(runtime.trouble())),)

    source = metrics.Source([*counted.all, metrics.restarts(home.run, PROCESS)], read, runtime.trouble, known)
    return metrics.Exporter(source, runtime.log, path=home.http(PROCESS), port=settings.metrics.agent_runtime_port)
