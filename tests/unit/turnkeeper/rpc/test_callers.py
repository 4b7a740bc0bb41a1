"""Who calls a service: said by the caller, or proved with the home's key; on real sockets, with a service that agrees."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from agent_runtime.service.servicer import RULES as OF_RUNTIME
from task_runner.service.service import RULES as OF_RUNNER
from turnkeeper.bus.event_log import EventLog, read_events
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import Corrupt, Denied, InvalidInput, TurnkeeperError
from turnkeeper.rpc import callers
from turnkeeper.rpc.callers import PROOF, VIA, Door, Identity, Metadata, Rules
from turnkeeper.rpc.channel import connect
from turnkeeper.rpc.errors import from_rpc
from turnkeeper.rpc.server import UnixServer
from turnkeeper.storage.keys import CALLS, KeyFile
from turnkeeper.v1 import agent_runtime_pb2, agent_runtime_pb2_grpc, schedules_pb2, schedules_pb2_grpc

SERVICES: dict[str, tuple[Any, Any, Any, Rules]] = {
    "agent-runtime": (
        agent_runtime_pb2.DESCRIPTOR.services_by_name["AgentRuntime"],
        agent_runtime_pb2_grpc.add_AgentRuntimeServicer_to_server,
        agent_runtime_pb2_grpc.AgentRuntimeStub,
        OF_RUNTIME,
    ),
    "task-runner": (
        schedules_pb2.DESCRIPTOR.services_by_name["Schedules"],
        schedules_pb2_grpc.add_SchedulesServicer_to_server,
        schedules_pb2_grpc.SchedulesStub,
        OF_RUNNER,
    ),
}
ALL = [(name, method) for name, (service, *_) in SERVICES.items() for method in service.methods]
NAMES = [f"{name}-{method.name}" for name, method in ALL]


class Agrees:
    """Answers every method of a service with an empty message, and counts what came through."""

    def __init__(self, service: Any) -> None:
        self.came: list[str] = []
        for method in service.methods:
            setattr(self, method.name, self._answering(method))

    def _answering(self, method: MethodDescriptor) -> Callable[..., Any]:
        answer = GetMessageClass(method.output_type)()

        async def once(_request: Any, _context: Any) -> Any:
            self.came.append(method.name)
            return answer

        async def stream(_request: Any, _context: Any) -> AsyncIterator[Any]:
            self.came.append(method.name)
            yield answer

        return stream if method.server_streaming else once


@asynccontextmanager
async def serving(home: Home, name: str) -> AsyncIterator[tuple[Agrees, Any]]:
    """Serve one of the services behind its door; give what counts, and a stub."""
    service, register, stub, rules = SERVICES[name]
    agrees = Agrees(service)
    server = UnixServer(home.socket(name), Door(home, rules, EventLog(home.logs, name, SystemClock())))
    server.add(register, agrees)
    await server.start()
    channel = connect(home.socket(name))
    yield agrees, stub(channel)
    await channel.close()
    await server.stop(0.0)


async def call(stub: Any, method: str, request: Any, metadata: Metadata = ()) -> Any:
    """Call a method of any kind once. Raises our errors.

    A stream of requests stays empty: gRPC fails with INTERNAL if a request is sent while the server refuses the call.
    """
    made = getattr(stub, method)
    try:
        if isinstance(made, grpc.aio.StreamStreamMultiCallable):
            return [answer async for answer in made(metadata=metadata, timeout=20)]
        if isinstance(made, grpc.aio.UnaryStreamMultiCallable):
            return [answer async for answer in made(request, metadata=metadata, timeout=20)]
        return await made(request, metadata=metadata, timeout=20)
    except grpc.RpcError as error:
        raise from_rpc(error, "the daemon") from error


def acts(home: Home, event: str = "act.done") -> list[tuple[str, str]]:
    return [(record["method"], record["via"]) for record in read_events(home.logs) if record["event"] == event]


def peer_of(home: Home, name: str) -> Identity:
    """Return the identity of the daemon that has to prove itself to a service."""
    return Identity.of_daemon(SERVICES[name][3].peer, name, home)


def test_who_is_late_with_an_answer_runs_and_need_not_be_started() -> None:
    nothing = grpc.aio.Metadata()
    late, gone = (
        from_rpc(grpc.aio.AioRpcError(code, nothing, nothing), "task-runner")
        for code in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)
    )
    assert ("turnkeeper up" in late.hint, "turnkeeper doctor" in late.hint) == (False, True)
    assert gone.hint == "start it with: turnkeeper up"


@pytest.mark.parametrize("name", SERVICES)
def test_each_method_of_the_contract_is_a_read_an_act_or_the_peers_alone(name: str):
    service, _, _, rules = SERVICES[name]
    told = [*rules.reads, *rules.acts, *rules.reserved_methods]
    assert sorted(told) == sorted(method.name for method in service.methods)
    for method in service.methods:
        source, _, path = rules.acts.get(method.name, "").partition(".")
        message = GetMessageClass(method.input_type if source == "request" else method.output_type)()
        paths = [*rules.reserved_fields.get(method.name, ())]
        request = GetMessageClass(method.input_type)()
        assert [list(callers._values(request, each)) for each in paths] == [[] for _ in paths], "each field exists"
        assert not path or list(callers._values(message, path)) == []


@pytest.mark.parametrize(("name", "method"), ALL, ids=NAMES)
async def test_every_act_is_recorded_with_what_it_came_by_and_no_read_is(
    home: Home, name: str, method: MethodDescriptor
):
    rules, request = SERVICES[name][3], GetMessageClass(method.input_type)()
    async with serving(home, name) as (agrees, stub):
        if method.name in rules.reserved_methods:
            with pytest.raises(Denied, match=f"only {rules.peer} may call {method.name}"):
                await call(stub, method.name, request, Identity("my-bot/api/k1").metadata(method.name, request))
            assert agrees.came == [], "nothing of it is done"
            assert acts(home, "act.refused") == [(method.name, "my-bot/api/k1")]
            proved = None if method.client_streaming else request
            await call(stub, method.name, request, peer_of(home, name).metadata(method.name, proved))
        else:
            await call(stub, method.name, request, Identity("my-bot/api/k1").metadata(method.name, request))
            await call(stub, method.name, request)
        assert set(agrees.came) == {method.name}
    known = method.name in rules.reads or method.name in rules.reserved_methods
    assert acts(home) == ([] if known else [(method.name, "my-bot/api/k1"), (method.name, "unknown")])


async def test_what_changes_nothing_is_not_recorded(home: Home):
    spec = schedules_pb2.TaskSpec(name="a")
    async with serving(home, "task-runner") as (_, stub):
        await call(stub, "CreateTask", schedules_pb2.CreateTaskRequest(spec=spec, dry_run=True))
        await call(stub, "BackfillTask", schedules_pb2.BackfillTaskRequest(name="a", dry_run=True))
        await call(stub, "BackfillTask", schedules_pb2.BackfillTaskRequest(name="a"))
    (record,) = [record for record in read_events(home.logs) if record["event"] == "act.done"]
    assert (record["method"], record["subject"], record["via"]) == ("BackfillTask", "a", "unknown")


async def test_an_act_that_waits_for_a_store_is_recorded_before_it_is_done(home: Home, monkeypatch: pytest.MonkeyPatch):
    answering = Agrees._answering

    def slow(agrees: Agrees, method: MethodDescriptor) -> Callable[..., Any]:
        answer = answering(agrees, method)

        async def once(request: Any, context: Any) -> Any:
            while not acts(home, "act.asked"):  # as long as a store that somebody has locked
                await SystemClock().sleep(0.005)
            return await answer(request, context)

        return once if method.name == "PauseTask" else answer

    monkeypatch.setattr(Agrees, "_answering", slow)
    async with serving(home, "task-runner") as (_, stub):
        await call(
            stub, "PauseTask", schedules_pb2.PauseTaskRequest(name="a"), Identity("my-bot/api/k1").metadata("PauseTask")
        )
    assert acts(home, "act.asked") == acts(home) == [("PauseTask", "my-bot/api/k1")]


async def test_what_every_server_checks_of_a_request_is_checked_behind_the_door_too(home: Home):
    async with serving(home, "task-runner") as (agrees, stub):
        with pytest.raises(InvalidInput, match="is negative"):
            await call(stub, "ListTasks", schedules_pb2.ListTasksRequest(limit=-1))
        assert agrees.came == []


def made_up() -> dict[str, tuple[str, Any]]:
    by = schedules_pb2.CreatedBy(turn_id="turn-1", category="work", agent="agent0")
    spec = schedules_pb2.TaskSpec(name="a", created_by=by)
    return {
        "created_by": ("CreateTask", schedules_pb2.CreateTaskRequest(spec=spec)),
        "an empty created_by": (
            "CreateTask",
            schedules_pb2.CreateTaskRequest(spec=schedules_pb2.TaskSpec(created_by=schedules_pb2.CreatedBy())),
        ),
        "fire_id": ("CreateTask", schedules_pb2.CreateTaskRequest(fire_id="f")),
        "created_by, applied": ("ApplyTasks", schedules_pb2.ApplyTasksRequest(specs=[schedules_pb2.TaskSpec(), spec])),
        "an event's created_by": ("EmitEvent", schedules_pb2.EmitEventRequest(created_by=by)),
        "an event's channel": ("EmitEvent", schedules_pb2.EmitEventRequest(channel="c")),
        "an event's thread": ("EmitEvent", schedules_pb2.EmitEventRequest(thread_id="t")),
    }


@pytest.mark.parametrize(("method", "request_"), made_up().values(), ids=made_up())
async def test_what_only_the_runtime_may_set_is_refused_from_any_other_caller(home: Home, method: str, request_: Any):
    async with serving(home, "task-runner") as (agrees, stub):
        for via in ("agent-runtime/cli", "agent-runtime/api"):
            with pytest.raises(Denied, match="only be set by agent-runtime") as refused:
                await call(stub, method, request_, Identity(via).metadata(method, request_))
            assert refused.value.hint == "leave it out"
        with pytest.raises(Denied, match="sends no proof"):
            await call(stub, method, request_, ((VIA, "agent-runtime/daemon"),))
        runner = Identity.of_daemon("task-runner", "task-runner", home)
        with pytest.raises(Denied, match="only be set by agent-runtime"):
            await call(stub, method, request_, runner.metadata(method, request_))
        assert agrees.came == []
        await call(stub, method, request_, peer_of(home, "task-runner").metadata(method, request_))
        assert agrees.came == [method]


async def test_a_daemon_names_the_fire_of_an_event_and_no_other_caller_does(home: Home):
    method, one = "EmitEvent", schedules_pb2.EmitEventRequest(fire_id="f")
    async with serving(home, "task-runner") as (agrees, stub):
        for via in ("agent-runtime/cli", "agent-runtime/api", "delivery/api"):
            with pytest.raises(Denied, match="only be set by agent-runtime"):
                await call(stub, method, one, Identity(via).metadata(method, one))
        with pytest.raises(Denied, match="sends no proof"):
            await call(stub, method, one, ((VIA, "delivery/daemon"),))
        assert agrees.came == []
        for daemon in (Identity.of_daemon("task-runner", "task-runner", home), peer_of(home, "task-runner")):
            await call(stub, method, one, daemon.metadata(method, one))
        assert agrees.came == [method, method]


@pytest.mark.parametrize("fields", [{"for_task": True}, {"any_value": ["url"]}], ids=["for_task", "any_value"])
async def test_what_an_author_sets_himself_is_refused_from_a_program(home: Home, fields: dict[str, Any]):
    one = agent_runtime_pb2.ResolveInterruptRequest(interrupt_id="a", decision="approve", **fields)
    several = agent_runtime_pb2.ResolveInterruptsRequest(decisions=[one])
    asked = {"ResolveInterrupt": one, "ResolveInterrupts": several}
    async with serving(home, "agent-runtime") as (agrees, stub):
        for method, request in asked.items():
            runner = peer_of(home, "agent-runtime")
            for said in ((), Identity("my-bot/api").metadata(method), Identity("a/mcp").metadata(method),
                         runner.metadata(method, request)):  # fmt: skip
                with pytest.raises(Denied, match="only be set by an author himself"):
                    await call(stub, method, request, said)
        assert (agrees.came, len(acts(home, "act.refused"))) == ([], 8)
        for surface in ("cli", "conversation", "web"):
            await call(stub, "ResolveInterrupt", one, Identity(f"a/{surface}").metadata("ResolveInterrupt"))
        plain = agent_runtime_pb2.ResolveInterruptRequest(interrupt_id="a", decision="approve")
        await call(stub, "ResolveInterrupt", plain)
        assert len(agrees.came) == 4, "a program may still approve one call"


async def test_what_a_person_typed_is_read_as_an_order_only_on_an_authors_surface(home: Home):
    typed = schedules_pb2.CreateTaskRequest(loop=True, words="15m check the build")
    async with serving(home, "task-runner") as (agrees, stub):
        for via in ("", "my-bot/api", "a-client/mcp/k1"):
            with pytest.raises(Denied, match="only be set by an author himself") as refused:
                await call(stub, "CreateTask", typed, Identity(via).metadata("CreateTask"))
            assert refused.value.where == "words"
        agents = peer_of(home, "task-runner")
        with pytest.raises(Denied, match="only be set by an author himself"):
            await call(stub, "CreateTask", typed, agents.metadata("CreateTask", typed))
        assert agrees.came == []
        await call(stub, "CreateTask", typed, Identity("a-client/web").metadata("CreateTask"))
        assert agrees.came == ["CreateTask"]


def changed(metadata: Metadata, **fields: Callable[[str], str]) -> Metadata:
    names = ("key", "at", "nonce", "mac")
    parts = dict(zip(names, dict(metadata)[PROOF].split(":"), strict=True))
    text = ":".join(fields.get(name, str)(parts[name]) for name in names)
    return tuple((name, text if name == PROOF else value) for name, value in metadata)


FORGERIES: dict[str, Callable[[Metadata], Metadata]] = {
    "a key of no name": lambda said: changed(said, key=lambda _: "0"),
    "a later time": lambda said: changed(said, at=lambda at: str(int(at) + 1)),
    "another nonce": lambda said: changed(said, nonce=lambda _: "0" * 32),
    "another code": lambda said: changed(said, mac=lambda _: "0" * 64),
    "no form": lambda said: tuple((name, "x" if name == PROOF else value) for name, value in said),
    "another program": lambda said: tuple((name, "turnkeeper/daemon" if name == VIA else v) for name, v in said),
}


@pytest.mark.parametrize("forged", FORGERIES.values(), ids=FORGERIES)
async def test_a_proof_that_was_changed_is_refused(home: Home, forged: Callable[[Metadata], Metadata]):
    request = agent_runtime_pb2.FireRequest(fire_id="f")
    async with serving(home, "agent-runtime") as (agrees, stub):
        with pytest.raises(Denied, match="the proof"):
            await call(stub, "Fire", request, forged(peer_of(home, "agent-runtime").metadata("Fire", request)))
        assert agrees.came == []


async def test_a_proof_is_good_for_one_call_with_one_request(home: Home):
    request, other = agent_runtime_pb2.FireRequest(fire_id="f"), agent_runtime_pb2.FireRequest(fire_id="g")
    identity = peer_of(home, "agent-runtime")
    async with serving(home, "agent-runtime") as (agrees, stub):
        said = identity.metadata("Fire", request)
        with pytest.raises(Denied, match="does not belong to this call"):
            await call(stub, "Fire", other, said)
        with pytest.raises(Denied, match="does not belong to this call"):
            await call(stub, "FireStream", request, said)
        assert agrees.came == []
        await call(stub, "Fire", request, said)
        with pytest.raises(Denied, match="used before"):
            await call(stub, "Fire", request, said)
        with pytest.raises(Denied, match="does not belong to this call"):
            await call(stub, "FireStream", request, identity.metadata("FireBatches"))
        opened = identity.metadata("FireBatches")
        await call(stub, "FireBatches", agent_runtime_pb2.FireBatch(), opened)
        with pytest.raises(Denied, match="used before"):
            await call(stub, "FireBatches", agent_runtime_pb2.FireBatch(), opened)
    assert agrees.came == ["Fire", "FireBatches"]
    async with serving(home, "agent-runtime") as (later, stub):
        with pytest.raises(Denied, match="does not belong to this call"):
            await call(stub, "Fire", request, said)
        assert later.came == [], "a daemon that was started again takes no proof of before"


async def test_a_proof_is_good_for_a_minute(home: Home, monkeypatch: pytest.MonkeyPatch):
    request = agent_runtime_pb2.FireRequest(fire_id="f")
    async with serving(home, "agent-runtime") as (agrees, stub):
        said = peer_of(home, "agent-runtime").metadata("Fire", request)
        now = SystemClock.monotonic
        monkeypatch.setattr(SystemClock, "monotonic", lambda self: now(self) + 61)
        with pytest.raises(Denied, match="more than a minute old"):
            await call(stub, "Fire", request, said)
        assert agrees.came == []


async def test_a_proof_holds_while_the_socket_is_bound_again_by_the_same_process(home: Home):
    request = agent_runtime_pb2.FireRequest(fire_id="f")
    service, register, stub_of, rules = SERVICES["agent-runtime"]
    server = UnixServer(home.socket("agent-runtime"), Door(home, rules, EventLog(home.logs, "x", SystemClock())))
    server.add(register, agrees := Agrees(service))
    await server.start()
    before = peer_of(home, "agent-runtime").metadata("Fire", request)
    home.socket("agent-runtime").unlink()
    assert await server.keep()
    channel = connect(home.socket("agent-runtime"))
    await call(stub_of(channel), "Fire", request, before)
    await call(stub_of(channel), "Fire", request, peer_of(home, "agent-runtime").metadata("Fire", request))
    assert agrees.came == ["Fire", "Fire"]
    await channel.close()
    await server.stop(0.0)


async def test_a_key_can_be_rotated_while_daemons_serve_and_the_old_one_is_soon_refused(home: Home):
    request, now = agent_runtime_pb2.FireRequest(fire_id="f"), SystemClock().now()
    async with serving(home, "agent-runtime") as (agrees, stub):
        identity = peer_of(home, "agent-runtime")
        await call(stub, "Fire", request, identity.metadata("Fire", request))
        late = identity.metadata("Fire", request)
        KeyFile(home, CALLS).rotate(now, SystemEntropy())
        await call(stub, "Fire", request, identity.metadata("Fire", request))
        await call(stub, "Fire", request, late)
        late = identity.metadata("Fire", request)
        KeyFile(home, CALLS).rotate(now - timedelta(seconds=61), SystemEntropy())
        with pytest.raises(Denied, match="a key that this home does not use"):
            await call(stub, "Fire", request, late)
    assert agrees.came == ["Fire"] * 3
    assert len(KeyFile(home, CALLS).read()) == 3
    callers.make_key(home)
    assert len(KeyFile(home, CALLS).read()) == 2, "a start forgets what was retired more than a minute ago"


async def test_a_key_of_another_home_proves_nothing(home: Home, tmp_path: Any):
    other = Home(root=tmp_path / "other")
    other.create()
    callers.make_key(other)
    request = agent_runtime_pb2.FireRequest(fire_id="f")
    async with serving(home, "agent-runtime") as (agrees, stub):
        stranger = Identity("task-runner/daemon", home.socket("agent-runtime"), KeyFile(other, CALLS))
        with pytest.raises(Denied, match="a key that this home does not use"):
            await call(stub, "Fire", request, stranger.metadata("Fire", request))
        assert agrees.came == []


def test_a_lost_or_open_key_is_an_error_that_says_what_to_do(home: Home):
    callers.make_key(home)
    path = home.keys / "calls.json"
    path.chmod(0o644)
    with pytest.raises(Corrupt, match=f"can be read by other users; run: chmod 600 {path}"):
        peer_of(home, "agent-runtime").metadata("Fire")
    path.unlink()
    with pytest.raises(Corrupt, match="turnkeeper keys rotate calls --lost"):
        callers.make_key(home)


@pytest.mark.parametrize(
    "said", ["x", "a/b/c/d", "a/cli ", "/cli", "a/moon", "a/cli/" + "k" * 65, "a\tb/cli", "a/cli/"]
)
async def test_a_caller_that_names_itself_in_another_form_is_refused(home: Home, said: str):
    with pytest.raises(InvalidInput, match="does not name the origin of a call"):
        callers.read_via(said)
    if said.isprintable():
        async with serving(home, "task-runner") as (agrees, stub):
            with pytest.raises(TurnkeeperError):
                await call(stub, "Tick", schedules_pb2.TickRequest(), ((VIA, said),))
            assert agrees.came == [] or said.endswith(" "), "gRPC takes blanks at the end away"
