"""Whatever a caller puts into any field of any request, a daemon serves it or says what is wrong; it never breaks.

The fields are those of the contract itself, also of messages within messages, so that a new field is tried too.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from langchain_core.messages import AIMessage

from task_runner.service.service import Servicer
from tests.integration.runner.conftest import Rig
from tests.integration.runtime.harness import PATIENCE_S, Bench
from tests.support.clock import ManualClock
from tests.support.scripted import calls
from turnkeeper.config.home import Home
from turnkeeper.rpc.channel import connect
from turnkeeper.rpc.server import UnixServer
from turnkeeper.v1 import agent_runtime_pb2, schedules_pb2
from turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.v1.agent_runtime_pb2_grpc import add_AgentRuntimeServicer_to_server
from turnkeeper.v1.schedules_pb2_grpc import add_SchedulesServicer_to_server

SERVICES = {
    "agent-runtime": agent_runtime_pb2.DESCRIPTOR.services_by_name["AgentRuntime"],
    "task-runner": schedules_pb2.DESCRIPTOR.services_by_name["Schedules"],
}
BROKEN = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS, grpc.StatusCode.UNIMPLEMENTED}
INSTANT = {"seconds": 1_790_000_000}
PAGE = {"page_id": "page", "title": "t", "body": "b"}
OF_TASK = {"name": "hourly", "category": "work", "channel": "main", "prompt": "p"}
# What makes a request good enough that its other fields are looked at, in one way or more.
GOOD: dict[str, list[dict[str, Any]]] = {
    "FireRequest": [{
        "fire_id": "task-1@1", "attempt": 1, "task_id": "task-1", "thread_id": "t", "channel": "main",
        "category": "work", "prompt": "p", "kind": "manual", "nominal_at": INSTANT,
    }],
    "GetTurnRequest": [{"turn_id": "t"}, {"fire_id": "f", "attempt": 1}],
    "CancelTurnRequest": [{"turn_id": "t"}, {"fire_id": "f", "attempt": 1}],
    "SendMessageRequest": [{"channel": "main", "text": "a"}],
    "GetConversationRequest": [{"channel": "main"}],
    "WatchConversationRequest": [{"channel": "main"}],
    "PutThreadRequest": [{"thread_id": "t", "channel": "main"}],
    "ResolveInterruptRequest": [{"interrupt_id": "", "decision": "answer", "message": "m"}],
    "DecideCandidateRequest": [{"candidate_id": "c", "accept": True}],
    "GetPageRequest": [{"page_id": "page"}],
    "PutPageRequest": [PAGE],
    "PutAttachmentRequest": [{"page_id": "page", "name": "a.txt", "content_type": "text/plain", "data": b"x"}],
    "GetAttachmentRequest": [{"page_id": "page", "name": "a.txt"}],
    "ListAttachmentsRequest": [{"page_id": "page"}],
    "GetMemoryRequest": [{"tier": "channel", "owner": "main", "key": "k"}],
    "PutMemoryRequest": [{"tier": "channel", "owner": "main", "key": "k", "text": "t"}],
    "ListMemoryRequest": [{"tier": "channel", "owner": "main"}],
    "SearchMemoryRequest": [{"query": "q", "tier": "channel", "owner": "main"}],
    "TaskSpec": [OF_TASK | {"every": "1h"}, OF_TASK | {"on": "e"}, OF_TASK | {"dynamic": True}],
    "CreatedBy": [{"turn_id": "t", "category": "work", "agent": "agent0"}],
    "UpdateTaskRequest": [{"name": "hourly"}],
    "RescheduleTaskRequest": [{"name": "paced", "seconds": 60}],
    "BackfillTaskRequest": [{"name": "hourly", "from": "2026-03-01T00:00:00Z", "to": "2026-03-01T05:00:00Z"}],
    "SimulateRequest": [{"from": INSTANT, "to": {"seconds": 1_790_009_000}}],
    "EmitEventRequest": [{"name": "e"}],
}  # fmt: skip
KEPT = (OF_TASK | {"every": "1h"}, OF_TASK | {"name": "paced", "dynamic": True})
OF_TASKS = {"name", "note", "until", "replay", "cancel_running", "request_id", "at", "limit"}
LONG = "\u00e9" * ((1 << 19) + 1)  # a little over one MiB, the most that any text takes
TEXTS = (
    LONG,
    "a\0b",
    "\ud7ff\ue000\ufffe\uffff",
    '{"a": "\\ud83d"}',
    '{"a":' * 500 + "1" + "}" * 500,
    "1e999",
    "\u202e\x1b[2J",
)
NUMBERS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_DOUBLE: (float("nan"), float("inf"), -1e308),
    FieldDescriptor.CPPTYPE_FLOAT: (float("nan"), float("inf")),
    FieldDescriptor.CPPTYPE_BOOL: (True,),
    FieldDescriptor.CPPTYPE_ENUM: (99,),
}
MANY = 20_000
CODES = {code.value[0]: code for code in grpc.StatusCode}
DEEPEST = 3


def good(kind: Descriptor) -> list[Any]:
    """Return messages of a kind in which only some fields are given, with good values."""
    of_tasks = [{"name": "hourly"}] if {"name"} <= set(kind.fields_by_name) <= OF_TASKS else [{}]
    return [GetMessageClass(kind)(**given) for given in GOOD.get(kind.name, of_tasks)]


def hostile(kind: Descriptor, path: str = "", depth: int = 0, ways: int = 1) -> Iterator[tuple[str, Any]]:
    """Yield messages that have one hostile field each, with its path; the others are good, in one way or more."""
    for field, base in itertools.product(kind.fields, good(kind)[: ways if depth else None]):
        where = f"{path}{field.name}"
        if field.message_type is not None:
            for inner, value in hostile(field.message_type, f"{where}.", depth + 1, ways) if depth < DEEPEST else ():
                yield inner, _with(base, field, [value])
        values = [GetMessageClass(field.message_type)()] if field.message_type is not None else _values(field)
        for value in values:
            yield f"{where} = {_shown(value)}", _with(base, field, [value])
        if field.is_repeated:
            yield f"{where} x {MANY}", _with(base, field, [values[-1]] * MANY)


def _shown(value: Any) -> str:
    return f"{value[:40] if isinstance(value, str | bytes) else value!r:.40}"


def _values(field: FieldDescriptor) -> Any:
    if field.cpp_type != FieldDescriptor.CPPTYPE_STRING:
        return NUMBERS[field.cpp_type]
    return (
        TEXTS if field.type == FieldDescriptor.TYPE_STRING else tuple(text.encode("utf-8", "replace") for text in TEXTS)
    )


def _with(base: Any, field: FieldDescriptor, values: list[Any]) -> Any:
    made = type(base)()
    made.CopyFrom(base)
    made.ClearField(field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        for value in values:
            getattr(made, field.name)[value.key] = value.value
    elif field.is_repeated:
        getattr(made, field.name).extend(values)
    elif field.message_type is not None:
        getattr(made, field.name).CopyFrom(values[0])
    else:
        setattr(made, field.name, values[0])
    return made


@pytest_asyncio.fixture
async def channels(home: Home) -> AsyncIterator[dict[str, grpc.aio.Channel]]:
    """Both services on their sockets, without the door that asks callers who they are."""
    bench, rig = Bench(home), Rig(home, ManualClock(), home.schedules_db)
    await bench.open()
    await bench.service.PutPage(wire.PutPageRequest(**PAGE), None)
    bench.script["p"] = [calls(("ask", {"question": "q"})), AIMessage("done")]
    await bench.run(prompt="p")
    (asked,) = await bench.pending()
    GOOD["ResolveInterruptRequest"][0]["interrupt_id"] = asked.interrupt_id
    bench.service.close()  # streams end once they have given what there is
    runtime, runner = UnixServer(home.socket("agent-runtime")), UnixServer(home.socket("task-runner"))
    runtime.add(add_AgentRuntimeServicer_to_server, bench.service)
    runner.add(add_SchedulesServicer_to_server, Servicer(rig.service))
    async with AsyncExitStack() as opened:
        opened.push_async_callback(bench.close)
        for server in (runtime, runner):
            await server.start()
            opened.push_async_callback(server.stop, 0.0)
        made = {name: connect(home.socket(name)) for name in SERVICES}
        for channel in made.values():
            opened.push_async_callback(channel.close)
        yield made


@pytest.mark.parametrize("name", SERVICES)
async def test_no_value_of_a_field_breaks_a_daemon(channels: dict[str, grpc.aio.Channel], name: str) -> None:
    methods, broken, ended = SERVICES[name].methods_by_name, dict[str, Any](), Counter[grpc.StatusCode]()
    for method in SERVICES[name].methods:
        for spec in KEPT if name == "task-runner" else ():  # a task may have been deleted meanwhile
            request = schedules_pb2.CreateTaskRequest(spec=schedules_pb2.TaskSpec(**spec))
            await called(channels[name], methods["CreateTask"], request)
        for number, (what, request) in enumerate(
            hostile(method.input_type, ways=3 if method.name == "CreateTask" else 1)
        ):
            code, said = await called(channels[name], method, _fresh(request, number))
            ended[code] += 1
            if code in BROKEN:
                broken[f"{method.name}: {what}"] = (code.name, said)
    assert not broken
    assert min(ended[grpc.StatusCode.OK], ended[grpc.StatusCode.INVALID_ARGUMENT]) > 100, "both sides were tried"


def _fresh(request: Any, number: int) -> Any:
    """Give what is made once a name of its own."""
    if isinstance(request, wire.FireRequest) and request.fire_id == "task-1@1":
        request.fire_id = f"task-1@{number}"
    if isinstance(request, schedules_pb2.CreateTaskRequest) and request.spec.name == "hourly":
        request.spec.name = f"task-{number}"
    return request


async def called(channel: grpc.aio.Channel, method: MethodDescriptor, request: Any) -> tuple[grpc.StatusCode, str]:
    """Make a call; return how it ended, and the error's text."""
    path, data = f"/{method.containing_service.full_name}/{method.name}", request.SerializeToString()
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await _answered(channel, method, path, data)
    except grpc.aio.AioRpcError as error:
        return error.code(), str(error.details())


async def _answered(
    channel: grpc.aio.Channel, method: MethodDescriptor, path: str, data: bytes
) -> tuple[grpc.StatusCode, str]:
    """Read the whole answer. A stream of fires goes on after one that is refused: that is told in its receipt."""
    if not (method.server_streaming or method.client_streaming):
        await channel.unary_unary(path)(data)
        return grpc.StatusCode.OK, ""
    call = channel.stream_stream(path)(iter([data])) if method.client_streaming else channel.unary_stream(path)(data)
    answers: list[Any] = []
    async for answer in call:
        answers.append(GetMessageClass(method.output_type).FromString(answer))
        if getattr(answers[0], "change", "") == "watching":  # it was taken, and would go on for ever
            break
    receipts = [receipt for answer in answers for receipt in getattr(answer, "receipts", [answer])]
    refused = next((one.error for one in receipts if method.client_streaming and one.HasField("error")), None)
    return (CODES[refused.code], refused.message) if refused else (grpc.StatusCode.OK, "")
