"""Attacks on what stands around the turns: each has no effect, and has its effect when its guards are taken out.

Attacks on the guard of tool calls are in tests/integration/runtime/attacks.py. Where an attack names several guards,
each of them is enough by itself.
"""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
from langchain_core.messages import AIMessage

from agent_runtime.graph.models.make import take_keys
from agent_runtime.mailbox.outbox import Outbox
from agent_runtime.mailbox.outboxes import Outboxes
from agent_runtime.mailbox.pane import Pane
from agent_runtime.model.trigger import Trigger, from_meta, to_envelope
from agent_runtime.permissions.categories import Categories
from agent_runtime.service.requests import read_fire
from agent_runtime.workspace.web import extract
from agent_runtime.workspace.web.page import WebReader
from task_runner.timetable import check_excluded, excluding, parse_cron, zone
from task_runner.timetable.rrule import parse_rrule
from tests.integration.bus.test_tmux_delivery import Terminal, until
from tests.integration.runner.conftest import Rig
from tests.integration.runtime.harness import PATIENCE_S, Bench, look_again
from tests.support.clock import ManualClock
from tests.support.guards import take_out
from tests.support.pages import Answer, serving
from tests.support.scripted import calls
from tests.support.seeded_entropy import SeededEntropy
from turnkeeper.bus.envelope import Envelope, encode
from turnkeeper.bus.seals import seal
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.errors import TurnkeeperError
from turnkeeper.storage.keys import KeyFile
from turnkeeper.storage.locking import is_held
from turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.v1 import schedules_pb2

ROOT = Path(__file__).parents[2]
Effects = list[str]


@dataclass(frozen=True, kw_only=True)
class Attack:
    """One attack.

    Attributes:
        name: what it tries.
        run: tries it on a home; returns the effects that it had.
        without: its guards, each as the path to it and what stands in its place when it is taken out.
    """

    name: str
    run: Callable[["Ground"], Awaitable[Effects]]
    without: Mapping[str, Any]


ATTACKS: list[Any] = []


def attack(name: str, without: Mapping[str, Any], *marks: pytest.MarkDecorator) -> Any:
    """Register a function as an attack."""

    def register(run: Callable[["Ground"], Awaitable[Effects]]) -> Any:
        ATTACKS.append(pytest.param(Attack(name=name, run=run, without=without), id=name, marks=marks))
        return run

    return register


class Ground:
    """A home, with what attacks open on it, and closes."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.opened = contextlib.AsyncExitStack()

    async def bench(self) -> Bench:
        """Open a runtime that hosts agent0 and agent1, whose model notes `evil` when it is told to obey."""
        bench = Bench(self.home)
        bench.settings = bench.settings.model_validate(
            {"agents": {"agent0": {"workers": 1}}, "categories": {"autonomous_allowed": ["work"]}}
        )
        bench.script["obey"] = [calls(("note", {"text": "evil"})), AIMessage("done")]
        await bench.open()
        self.opened.push_async_callback(bench.close)
        return bench

    def terminal(self, program: str, prompt: str) -> tuple[Terminal, Pane]:
        """Open a terminal and what pastes into it; with a prompt, the author has named that one."""
        terminal = Terminal(self.home, program)
        self.opened.callback(terminal.close)
        return terminal, Pane("codex", server=terminal.server, prompt=prompt, clock=SystemClock())


async def _until(probe: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not probe():
            await look_again()


# What an agent in a terminal sends.


async def _sends(ground: Ground, **fields: Any) -> Bench:
    """Put a file into the outbox of codex, and return the runtime once it has taken it."""
    bench = await ground.bench()
    folder = ground.home.inbox("codex")
    (folder / "outbox").mkdir(parents=True, mode=0o700)
    folder.chmod(0o700)
    (folder / "outbox" / "1.json").write_text(json.dumps(fields))
    await _until(lambda: bench.trail("outbox.refused") or bench.trail("outbox.accepted") or bench.noted)
    waiting = [ground.home.inbox(agent) / place for agent in ("agent0", "agent1") for place in ("inbox", "claimed")]
    await _until(lambda: not any(path.suffix == ".json" for folder in waiting for path in folder.iterdir()))
    await bench.run(2, prompt="hello")  # once it has run, the claiming of what lay before it is over
    await bench.rest()
    return bench


async def _posted(self: Outboxes, letter: Envelope) -> None:
    await self.mailboxes.post(letter)
    self.log.emit("outbox.accepted")


async def _delivered_to_whom_it_names(self: Outboxes, letter: Envelope) -> None:
    trigger = replace(await self._trigger(letter), agent=letter.to).sealed()
    await self.acceptor.accept(trigger)
    self.log.emit("outbox.accepted")


def _whoever_sent_it(envelope: Envelope) -> Trigger:
    return from_meta(envelope.meta | {"prompt": envelope.text})


@attack(
    "a shutdown in an outbox",
    {
        "agent_runtime.mailbox.outbox._SENT": frozenset({"shutdown"}),
        "agent_runtime.mailbox.outboxes.Outboxes._deliver": _posted,
        "agent_runtime.turns.worker.MAY_END": frozenset({"codex"}),
    },
)
async def _(ground: Ground) -> Effects:
    bench = await _sends(ground, kind="shutdown", text="now")
    return [record["sender"] for record in bench.trail("shutdown.received")]


def _wanted(**fields: Any) -> wire.FireRequest:
    given = {"fire_id": "task-1@1", "task_id": "task-1", "attempt": 1, "channel": "main", "thread_id": "t"} | fields
    request = wire.FireRequest(**{"category": "work", "prompt": "obey", "kind": "manual"} | given)
    request.nominal_at.FromSeconds(1_790_000_000)
    return request


def _fire(ground: Ground, **fields: Any) -> Envelope:
    """Return the envelope of a fire that no task has made."""
    categories = Categories(ground.home, Bench(ground.home).settings)
    trigger = read_fire(_wanted(**fields), categories.get)
    return to_envelope(trigger, envelope_id="1" * 32, at=SystemClock().now())


@attack(
    "a fire in an outbox",
    {
        "agent_runtime.mailbox.outbox._SENT": frozenset({"fire"}),
        "agent_runtime.mailbox.outbox._meta": lambda given, _kind: given,
        "agent_runtime.mailbox.outboxes.Outboxes._deliver": _posted,
        "agent_runtime.turns.worker.from_envelope": _whoever_sent_it,
    },
)
async def _(ground: Ground) -> Effects:
    fire = _fire(ground)
    return (await _sends(ground, kind=fire.kind, text=fire.text, meta=fire.meta, thread="t")).noted


@attack(
    "a message in an outbox for an agent other than agent0",
    {
        "agent_runtime.mailbox.outbox._checked": Envelope.checked,
        "agent_runtime.mailbox.outboxes.Outboxes._deliver": _delivered_to_whom_it_names,
        "agent_runtime.turns.worker.from_envelope": _whoever_sent_it,
    },
)
async def _(ground: Ground) -> Effects:
    bench = await _sends(ground, to="agent1", body="hello")
    found = await bench.service.GetConversation(wire.GetConversationRequest(channel="codex"), None)
    return [turn.agent for turn in found.turns if turn.agent != "agent0"]


def _outbox(ground: Ground) -> Outbox:
    outbox = Outbox(ground.home.inbox("codex"), ManualClock(), SeededEntropy(1))
    outbox.folder.mkdir(parents=True, mode=0o700)
    outbox.take(9)
    return outbox


def _read_through(outbox: Outbox) -> Effects:
    """Return what the runtime reads from the outbox."""
    outbox.take(9)
    found = []
    for name in outbox.take(9):
        with contextlib.suppress(TurnkeeperError):
            found.append(outbox.read(name).decode())
    return found


@attack(
    "a symbolic link in an outbox to a file of the author's",
    {"agent_runtime.mailbox.outbox._FILE": os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC},
)
async def _(ground: Ground) -> Effects:
    outbox, secret = _outbox(ground), ground.home.root / "secret"
    secret.write_text('{"body": "secret"}')
    (outbox.folder / "outbox" / "1.json").symlink_to(secret)
    return _read_through(outbox)


@attack(
    "a hard link in an outbox to a file of the author's",
    {"agent_runtime.mailbox.outbox._refuse_odd": lambda _found: None},
)
async def _(ground: Ground) -> Effects:
    outbox, secret = _outbox(ground), ground.home.root / "secret"
    secret.write_text('{"body": "secret"}')
    (outbox.folder / "outbox" / "1.json").hardlink_to(secret)
    return _read_through(outbox)


@attack(
    "a link in the place of an outgoing folder, through which the runtime writes",
    {"agent_runtime.mailbox.outbox._FOLDER": os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC},
)
async def _(ground: Ground) -> Effects:
    outbox, victim = _outbox(ground), ground.home.root / "victim"
    victim.mkdir(mode=0o700)
    (outbox.folder / "refused").rmdir()
    (outbox.folder / "refused").symlink_to(victim)
    (outbox.folder / "outbox" / "1.json").write_text('{"body": "x"}')
    with contextlib.suppress(TurnkeeperError):
        for name in outbox.take(9):
            outbox.refuse(name, "why")
    return os.listdir(victim)


@attack(
    "an envelope that was sealed for another agent, moved",
    {"turnkeeper.bus.seals.Seals._check_recipient": lambda _self, _envelope: None},
)
async def _(ground: Ground) -> Effects:
    bench = await ground.bench()
    (key, *_) = KeyFile(ground.home).read()
    moved = seal(encode(_fire(ground, agent="agent1")), key)
    (ground.home.inbox("agent0") / "inbox" / "1.json").write_bytes(moved)
    worker: Any = bench.runtime.worker
    worker._arrived.notify()
    await _until(lambda: bench.trail("envelope.quarantined") or bench.lying("delivered"))
    return bench.noted


# What is pasted into a terminal.

ANY = "(?s).*"  # a prompt that the author has named, and that every screen shows
IN_A_TERMINAL = (
    pytest.mark.process,
    pytest.mark.service,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
)
AGENT = "{python} {agent} {kept}"


def _paste(pane: Pane, text: str, *, patience_s: float = 0.0) -> None:
    """Paste as the watcher does, unless something stands in the way for so long."""
    with contextlib.suppress(TurnkeeperError):
        if SystemClock().poll(lambda: not pane.obstacle(), timeout_s=patience_s, every_s=0.01):
            pane.paste(text, buffer="attack")


def _await_shell(terminal: Terminal) -> None:
    until(lambda: terminal.screen()[-1:] in {"#", "$"}, "the shell's prompt")


def _file(ground: Ground, terminal: Terminal) -> Effects:
    """Return the file that the pasted line makes if a shell runs it, once that shell has run another line."""
    terminal.tmux("send-keys", "-t", "codex", "C-u")
    until(lambda: terminal.type("touch alive") or (ground.home.root / "alive").exists(), "the shell")
    return [path.name for path in ground.home.root.glob("evil")]


@attack(
    "a line that the user has begun is submitted",
    {"agent_runtime.mailbox.pane._matcher": lambda _prompt: lambda _screen: True},
    *IN_A_TERMINAL,
)
async def _(ground: Ground) -> Effects:
    terminal, pane = ground.terminal(AGENT, "")
    terminal.at_prompt()
    pane.open()
    terminal.tmux("send-keys", "-t", "codex", "-l", "half a line")
    until(lambda: "half a line" in terminal.screen(), "the half line")
    _paste(pane, "mail")
    terminal.tmux("send-keys", "-t", "codex", "C-u")
    until(lambda: terminal.given().endswith(b"\x15"), "the agent to read all")
    return terminal.given().decode().split("\r")[:-1]


@attack(
    "a shell is given a text",
    {"agent_runtime.mailbox.pane.Program.is_shell": property(lambda _self: False)},
    *IN_A_TERMINAL,
)
async def _(ground: Ground) -> Effects:
    terminal, pane = ground.terminal("", ANY)
    _await_shell(terminal)
    with contextlib.suppress(TurnkeeperError):
        pane.open()
        _paste(pane, "touch evil", patience_s=PATIENCE_S)
    return _file(ground, terminal)


@attack(
    "the shell that an agent leaves behind is given a text",
    {"agent_runtime.mailbox.pane.Program.is_still": lambda _self, _other: True},
    *IN_A_TERMINAL,
)
async def _(ground: Ground) -> Effects:
    terminal, pane = ground.terminal(f"{AGENT} --exit-after 1", ANY)
    terminal.at_prompt()
    pane.open()
    terminal.tmux("send-keys", "-t", "codex", "x")
    _await_shell(terminal)
    _paste(pane, "touch evil", patience_s=PATIENCE_S)
    return _file(ground, terminal)


@attack(
    "a program that reads whole lines is given a text, which its shell would read after its end",
    {"agent_runtime.mailbox.pane.Pane._reads_keys": lambda _self: True},
    *IN_A_TERMINAL,
)
async def _(ground: Ground) -> Effects:
    terminal, pane = ground.terminal("cat > {kept}", ANY)
    shown = ("display-message", "-p", "-t", "codex", "#{pane_current_command}")
    until(lambda: terminal.tmux(*shown) == "cat\n", "cat")
    pane.open()
    _paste(pane, "mail")
    terminal.tmux("send-keys", "-t", "codex", "C-d")
    until(lambda: terminal.tmux(*shown) != "cat\n", "the end of cat")
    return [terminal.kept.read_text()] if terminal.kept.read_text() else []


# Web pages.

TAKES_LONG = b"<html><body><article><table>" + b"<tr><td>a<td>b" * 200_000 + b"</table></article></body></html>"
LIMIT_S = 0.1


@attack(
    "a page keeps the process that reads it at work for longer than it may",
    {"agent_runtime.workspace.web.extract.asyncio.timeout": lambda _seconds: contextlib.nullcontext()},
)
async def _(ground: Ground) -> Effects:
    """Return the computing time of the reading process once it is a multiple of the limit, which here is short."""
    reader: list[psutil.Process] = []

    def computed() -> float:
        with contextlib.suppress(psutil.Error):
            return sum(reader[0].cpu_times()[:2])
        return 0.0

    async def ready(process: asyncio.subprocess.Process) -> None:
        nonlocal started
        await real(process)
        reader.append(psutil.Process(process.pid))
        started = computed()

    started = 0.0
    real = extract._ready
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extract, "_ready", ready)
        reading = asyncio.create_task(extract.extracted(TAKES_LONG, "", "http://a.example/", LIMIT_S))
        while not reading.done() and not (reader and computed() > started + 3 * LIMIT_S):
            await asyncio.wait([reading], timeout=0.01)
    found = [] if reading.done() else ["still at work"]
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    return found


def _any_name(name: str) -> str:
    return name


@attack("a charset that is none fails the turn", {"agent_runtime.workspace.web.extract.known_charset": _any_name})
async def _(ground: Ground) -> Effects:
    with serving() as site:
        site.pages["/"] = Answer(body=b"text", kind="text/plain; charset=zlib")
        here = WebReader(SystemClock(), refuse=lambda _address: None, ports=frozenset({site.port}))
        try:
            await here.fetch(site.url("/"), lambda _target: None)
        except TurnkeeperError:
            return []
        except Exception as error:  # noqa: BLE001  what is none of ours fails the turn
            return [type(error).__name__]
    return []


# Schedules.

START = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
MOST_STEPS = 600_000


def _too_many_steps(work: Callable[[], object]) -> Effects:
    """Run a piece of work up to the bound; return whether it would have gone on."""
    count = 0

    class TooManyError(Exception):
        pass

    def trace(_frame: Any, event: str, _arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        if count > MOST_STEPS:
            raise TooManyError
        return trace

    sys.settrace(trace)
    try:
        with contextlib.suppress(TurnkeeperError):
            work()
    except TooManyError:
        return [f"more than {MOST_STEPS} steps"]
    finally:
        sys.settrace(None)
    return []


@attack(
    "a rule whose COUNT is reached after ten thousand years",
    {"task_runner.timetable.rrule.COUNTED_FOR": timedelta(days=2_900_000)},
)
async def _(ground: Ground) -> Effects:
    def work() -> None:
        table = parse_rrule("FREQ=DAILY;COUNT=10000;INTERVAL=2;BYMONTH=2;BYMONTHDAY=29", zone=zone("UTC"), anchor=START)
        table.next_after(START + timedelta(days=365 * 5000))

    return _too_many_steps(work)


@attack("a schedule with a hundred thousand exclusions", {"task_runner.timetable.exclusions.MOST_EXCLUDED": 1 << 30})
async def _(ground: Ground) -> Effects:
    here = zone("UTC")
    days = [f"{START + timedelta(days=number):%Y-%m-%d}" for number in range(1, 100_000, 2)]

    def work() -> None:
        excluding(parse_cron("0 0 * * *", name="a", zone=here), check_excluded(days, here), here).next_after(START)

    return _too_many_steps(work)


@attack("a preview of more times than anybody reads", {"task_runner.service.lists._MOST_PREVIEWED": 1 << 31})
async def _(ground: Ground) -> Effects:
    rig = Rig(ground.home, ManualClock(), ground.home.root / "schedules.db")
    asked = schedules_pb2.PreviewScheduleRequest(spec=schedules_pb2.TaskSpec(rrule="FREQ=MINUTELY"), count=1500)
    found = await rig.service.preview_schedule(asked)
    return ["more"] if len(found.nominals) > 1000 else []


# Requests over the sockets.


def _accepted(ground: Ground, **fields: Any) -> Effects:
    """Return the envelope that the runtime would make of a fire with such fields."""
    try:
        return [encode(_fire(ground, **fields)).decode()]
    except TurnkeeperError:
        return []


def _as_it_is(_known: Any, text: str, _field: str) -> str:
    return text


@attack("a fire of a kind that there is not", {"agent_runtime.service.requests._one_of": _as_it_is})
async def _(ground: Ground) -> Effects:
    return _accepted(ground, kind="evil")


@attack("a payload nested 500 levels deep", {"turnkeeper.config.json_text.is_deeper": lambda *_about: False})
async def _(ground: Ground) -> Effects:
    return _accepted(ground, payload_json='{"a":' * 500 + "1" + "}" * 500)


@attack("a payload with half a character", {"turnkeeper.config.json_text._has_utf8": lambda _value: True})
async def _(ground: Ground) -> Effects:
    return _accepted(ground, payload_json='{"a": "\\ud83d"}')


@attack("a thread that is named like a path", {"agent_runtime.service.requests.read_label": lambda text, _field: text})
async def _(ground: Ground) -> Effects:
    return _accepted(ground, thread_id="../../etc")


# Homes.


@attack(
    "keys of model providers that other users can read are used",
    {"turnkeeper.config.home.Home.check_keys": lambda _self: None},
)
async def _(ground: Ground) -> Effects:
    ground.home.environment.write_text("TURNKEEPER_STOLEN=secret")
    ground.home.environment.chmod(0o644)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "environ", dict(os.environ))
        with contextlib.suppress(TurnkeeperError):
            take_keys(ground.home, {})
        return [name for name in os.environ if name == "TURNKEEPER_STOLEN"]


def _taken_over(_self: Home) -> None:
    """Say that somebody has."""


WITHOUT_TAKEOVER = "from turnkeeper.config.home import Home; Home.check_taken_over = lambda self: None\n"
SERVE = "import sys; from task_runner.daemon.__main__ import main; sys.exit(main(sys.argv[1:]))"


@attack(
    "a restored home runs beside its original",
    {"turnkeeper.config.home.Home.check_taken_over": _taken_over},
    pytest.mark.process,
)
async def _(ground: Ground) -> Effects:
    ground.home.restored.write_text("{}")
    program = SERVE if Home.check_taken_over is not _taken_over else WITHOUT_TAKEOVER + SERVE
    child = subprocess.Popen(  # noqa: ASYNC220  nothing else runs in this loop
        [sys.executable, "-c", program, str(ground.home.root)], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    until(lambda: child.poll() is not None or is_held(ground.home, "task-runner"), "the daemon to serve or to refuse")
    found = ["serves"] if child.poll() is None else []
    child.kill()
    child.wait()
    return found


@pytest_asyncio.fixture
async def ground(home: Home, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Ground]:
    monkeypatch.setenv("TMUX_TMPDIR", str(home.root))
    monkeypatch.setattr("agent_runtime.mailbox.pane.TAKEN_WITHIN_S", PATIENCE_S)
    made = Ground(home)
    yield made
    await made.opened.aclose()


@pytest.mark.parametrize("attack", [one for one in ATTACKS if len(one.values[0].without) == 1])
async def test_an_attack_has_no_effect(attack: Attack, ground: Ground) -> None:
    assert await attack.run(ground) == []


@pytest.mark.parametrize("attack", ATTACKS)
async def test_an_attack_succeeds_without_its_guards(
    attack: Attack, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_out(attack.without, monkeypatch)
    assert await attack.run(ground) != []


EACH = [
    pytest.param(one.values[0], guard, id=f"{one.id}, {guard.rpartition('.')[2]}", marks=one.marks)
    for one in ATTACKS
    for guard in one.values[0].without
    if len(one.values[0].without) > 1
]


@pytest.mark.parametrize(("attack", "guard"), EACH)
async def test_of_several_guards_each_is_enough(
    attack: Attack, guard: str, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_out({path: instead for path, instead in attack.without.items() if path != guard}, monkeypatch)
    assert await attack.run(ground) == []
