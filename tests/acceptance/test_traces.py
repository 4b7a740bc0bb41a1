"""One fire whole, as a collector of traces gets it from both daemons."""

import http.server
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.constellation import Constellation
from turnkeeper.rpc.traces import traceparent_of

pytestmark = pytest.mark.process
PROMPT = "Summarise the garden."


class Collector(http.server.ThreadingHTTPServer):
    """Takes spans by OTLP over HTTP."""

    daemon_threads = True

    def __init__(self) -> None:
        self.spans: list[tuple[str, Any]] = []
        super().__init__(("127.0.0.1", 0), _Taking)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/traces"

    def named(self, name: str) -> list[Any]:
        return [span for _, span in self.spans if span.name == name]


class _Taking(http.server.BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        request = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
        for resource in request.resource_spans:
            service = next(one.value.string_value for one in resource.resource.attributes if one.key == "service.name")
            self.server.spans += [(service, span) for scope in resource.scope_spans for span in scope.spans]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_said: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.shutdown()
    made.server_close()


def set_traces(constellation: Constellation, collector: Collector, *, content: bool) -> None:
    said = {"enabled": "true", "endpoint": f'"{collector.endpoint}"', "content": str(content).lower()}
    lines = "".join(f"{name} = {value}\n" for name, value in said.items())
    for home in constellation.homes:
        config = home.config.read_text()
        assert config.count("[traces]\n") == 1
        home.config.write_text(config.replace("[traces]\n", f"[traces]\n{lines}"))


def values(span: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, str(one.value.WhichOneof("value"))) for one in span.attributes}


@pytest.mark.parametrize(
    "content", [False, pytest.param(True, marks=pytest.mark.sqlite_only("what differs is what a span is told"))]
)
def test_one_trace_leads_from_planning_to_the_last_call(
    stopped: Constellation, collector: Collector, content: bool
) -> None:
    set_traces(stopped, collector, content=content)
    stopped.start(OTEL_BSP_SCHEDULE_DELAY="100")
    stopped.create("digest", "--in", "1s", "--prompt", PROMPT)
    (fire,) = stopped.until_outcome("digest", "succeeded")
    stopped.until(
        "the end to be told", lambda: collector.named("settle fire") and collector.named("invoke_agent agent0")
    )

    _, trace_id, span_id, _ = traceparent_of(fire["fire_id"]).split("-")
    assert {span.trace_id.hex() for _, span in collector.spans} == {trace_id}
    (root,), (turn,) = collector.named("fire"), collector.named("invoke_agent agent0")
    assert (root.span_id.hex(), root.parent_span_id, values(root)["turnkeeper.fire.kind"]) == (
        span_id,
        b"",
        "scheduled",
    )
    assert turn.parent_span_id == root.span_id
    assert values(turn)["turnkeeper.turn.id"] == fire["turn_id"]
    calls = [span for service, span in collector.spans if service == "agent-runtime" and span is not turn]
    assert {span.parent_span_id for span in calls} == {turn.span_id}
    assert {values(span)["gen_ai.operation.name"] for span in calls} == {"chat", "execute_tool"}
    assert all(turn.start_time_unix_nano <= span.start_time_unix_nano < span.end_time_unix_nano for span in calls)
    (end,) = collector.named("settle fire")
    assert (end.parent_span_id, values(end)["turnkeeper.fire.outcome"]) == (root.span_id, "succeeded")
    said = PROMPT in "".join(str(span) for _, span in collector.spans)
    assert said == content, "what was said goes along only if it is asked for"
