"""OpenTelemetry traces of fires and turns, disabled by default. The SDK is imported only if they are enabled.

A trace id is computed from the fire's id. So the runner and the runtime, and the processes that replace them after a
crash, add spans to the same trace without coordination. Fires are sent in batches, so each request contains the
context, which is stored with the turn. Spans are made from the records of the event log.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from turnkeeper import __version__
from turnkeeper.bus.event_log import EventLog, count_events
from turnkeeper.clock import Clock
from turnkeeper.config.build import install_command
from turnkeeper.config.home import Home
from turnkeeper.config.settings import Settings, TracesSettings
from turnkeeper.errors import InvalidInput

MOST_OPEN = 10_000  # most fires and turns whose start is kept in memory
_EXPORT_S = 5.0
_LAST_S = 3.0  # seconds at the end to send the remaining spans
_MISSING = "traces need OpenTelemetry's SDK, which is not installed"


def traceparent_of(fire_id: str) -> str:
    """Return the W3C trace context of a fire's first span.

    >>> traceparent_of("a") == traceparent_of("a"), traceparent_of("a") == traceparent_of("b")
    (True, False)
    """
    digest = hashlib.sha256(f"turnkeeper fire {fire_id}".encode()).hexdigest()
    return f"00-{digest[:32]}-{digest[32:48]}-01"


class Tracing:
    """The tracer of a process, which creates spans and exports them in the background.

    Attributes:
        content: True if spans include prompts, answers, arguments and results.
    """

    def __init__(self, process: str, settings: TracesSettings, clock: Clock, exporter: Any = None) -> None:
        """Export by OTLP over HTTP, unless a test passes a different exporter. Raises InvalidInput without the SDK."""
        try:
            from opentelemetry import context, trace  # noqa: PLC0415
            from opentelemetry.exporter.otlp.proto.http import trace_exporter  # noqa: PLC0415
            from opentelemetry.sdk import resources  # noqa: PLC0415
            from opentelemetry.sdk import trace as sdk  # noqa: PLC0415
            from opentelemetry.sdk.trace import export, id_generator  # noqa: PLC0415
        except ImportError as error:
            raise InvalidInput(_MISSING, where="traces.enabled", hint=install_command("turnkeeper[otel]")) from error
        self.content, self._clock = settings.content, clock
        self._api, self._nothing = trace, context.Context()

        class Ids(id_generator.RandomIdGenerator):
            """Generator of random ids, unless the next span's ids are given."""

            given: tuple[int, int] | None = None

            def generate_trace_id(self) -> int:
                return self.given[0] if self.given else super().generate_trace_id()

            def generate_span_id(self) -> int:
                return self.given[1] if self.given else super().generate_span_id()

        named = {"service.name": process, "service.namespace": "turnkeeper", "service.version": __version__}
        self._ids = Ids()
        self._provider = sdk.TracerProvider(
            resource=resources.Resource.create(named), id_generator=self._ids, shutdown_on_exit=False
        )
        if exporter is None:
            exporter = trace_exporter.OTLPSpanExporter(endpoint=settings.endpoint or None, timeout=_EXPORT_S)
        self._provider.add_span_processor(export.BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("turnkeeper", __version__)

    def start(self, name: str, kind: str, parent: Any, attributes: Mapping[str, Any]) -> Any:
        """Start a span now. `parent` is a span, a W3C context, or empty for a new trace."""
        context = self._api.set_span_in_context(self._parent(parent)) if parent else self._nothing
        return self._tracer.start_span(
            name, context, self._api.SpanKind[kind], dict(attributes), start_time=self.now_ns()
        )

    def start_fire(self, name: str, fire_id: str, attributes: Mapping[str, Any], at_ns: int) -> Any:
        """Start the root span of a fire's trace, with the ids computed from the fire's id."""
        _, trace_id, span_id, _ = traceparent_of(fire_id).split("-")
        self._ids.given = int(trace_id, 16), int(span_id, 16)
        try:
            kind = self._api.SpanKind.PRODUCER
            return self._tracer.start_span(name, self._nothing, kind, dict(attributes), start_time=at_ns)
        finally:
            self._ids.given = None

    def end(self, span: Any, error: str = "", **attributes: Any) -> None:
        """End a span now. If `error` is not empty, mark the span as failed."""
        span.set_attributes(attributes)
        if error:
            span.set_status(self._api.Status(self._api.StatusCode.ERROR, error))
        span.end(end_time=self.now_ns())

    def now_ns(self) -> int:
        """Return the current time in the unit of spans: nanoseconds since 1970."""
        return int(self._clock.now().timestamp() * 1e9)

    def keep(self) -> None:
        """Do nothing: spans are exported in the background."""

    def close(self) -> None:
        """Export the remaining spans, for at most a few seconds."""
        last = threading.Thread(target=self._provider.shutdown, name="last-spans", daemon=True)
        last.start()
        last.join(_LAST_S)

    def _parent(self, parent: Any) -> Any:
        if not isinstance(parent, str):
            return parent
        _, trace_id, span_id, flags = parent.split("-")
        flag = self._api.TraceFlags(int(flags, 16))
        known = self._api.SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=flag)
        return self._api.NonRecordingSpan(known)


def tracing_of(process: str, settings: TracesSettings, clock: Clock) -> Tracing | None:
    """Return the tracer, or None if the settings do not enable traces. Raises InvalidInput without the SDK."""
    return Tracing(process, settings, clock) if settings.enabled else None


def observe_fires(_home: Home, runner: Any, settings: Settings, clock: Clock) -> Tracing | None:
    """Trace the fires of a runner from now on. Return None if the settings do not enable traces."""
    tracing = tracing_of("task-runner", settings.traces, clock)
    if tracing is not None:
        FireSpans(tracing, runner.log)
        runner.dispatcher.traceparent = traceparent_of
    return tracing


class FireSpans:
    """The runner's spans: from the planning of a fire to its first acceptance, then for each retry and the outcome."""

    def __init__(self, tracing: Tracing, log: EventLog) -> None:
        self._tracing = tracing
        self._planned = OrderedDict[str, tuple[int, Mapping[str, Any]]]()
        told = {"fire.committed": self._committed, "fire.accepted": self._accepted, "fire.settled": self._settled}
        count_events(log, told)

    def _committed(self, fields: Mapping[str, Any]) -> None:
        keep_newest(self._planned, fields["fire_id"], (self._tracing.now_ns(), fields))

    def _accepted(self, fields: Mapping[str, Any]) -> None:
        known = self._planned.pop(fields["fire_id"], None)
        about = _about(fields) | {"turnkeeper.fire.attempt": fields["attempt"]}
        if fields["attempt"] > 1:
            self._tracing.end(self._tracing.start("fire again", "PRODUCER", traceparent_of(fields["fire_id"]), about))
        elif known is not None or fields["disposition"] == "ACCEPTED":
            at_ns, planned = known or (self._tracing.now_ns(), {})
            names = ("kind", "nominal_at", "due_at", "count", "policy")
            about |= {f"turnkeeper.fire.{name}": planned[name] for name in names if name in planned}
            self._tracing.end(self._tracing.start_fire("fire", fields["fire_id"], about, at_ns))

    def _settled(self, fields: Mapping[str, Any]) -> None:
        about = _about(fields) | {"turnkeeper.fire.outcome": fields["outcome"]}
        span = self._tracing.start("settle fire", "INTERNAL", traceparent_of(fields["fire_id"]), about)
        self._tracing.end(span, "failed" if fields["outcome"] == "failed" else "")


class TurnSpans:
    """The runtime's spans of turns: one for each interval, below the fire's span. Spans of calls are below it."""

    def __init__(self, tracing: Tracing, log: EventLog) -> None:
        self.tracing = tracing
        self._running = OrderedDict[str, Any]()
        count_events(log, {"turn.started": self._started, "turn.stopped": self._stopped})

    def of(self, turn_id: str) -> Any:
        """Return the span of a running turn, or None if the turn is not running."""
        return self._running.get(turn_id)

    def _started(self, fields: Mapping[str, Any]) -> None:
        agent = str(fields.get("agent", ""))
        about = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": agent,
            "gen_ai.conversation.id": fields["thread_id"],
            "turnkeeper.turn.id": fields["turn_id"],
            "turnkeeper.turn.mode": fields["mode"],
            "turnkeeper.trigger": fields["trigger"],
        }
        about |= {"turnkeeper.fire.id": fields["fire_id"]} if fields["fire_id"] else {}
        span = self.tracing.start(f"invoke_agent {agent}", "CONSUMER", fields.get("traceparent", ""), about)
        keep_newest(self._running, fields["turn_id"], span)

    def _stopped(self, fields: Mapping[str, Any]) -> None:
        span = self._running.pop(fields["turn_id"], None)
        if span is not None:
            state = fields["state"]
            self.tracing.end(span, "failed" if state == "failed" else "", **{"turnkeeper.turn.state": state})


def keep_newest(found: "OrderedDict[str, Any]", key: str, value: Any) -> None:
    """Store a value. Above the limit, drop the oldest values, which belong to turns and fires without a logged end."""
    found[key] = value
    with suppress(KeyError):
        while len(found) > MOST_OPEN:
            found.popitem(last=False)


def _about(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"turnkeeper.fire.id": fields["fire_id"], "turnkeeper.task.id": fields["task_id"]}
