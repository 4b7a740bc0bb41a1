"""The commands `turnkeeper inbox`."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from agent_runtime.cli.rows import clipped
from agent_runtime.mailbox import inbox as mailbox
from agent_runtime.mailbox.inbox import Reader, envelope_row
from agent_runtime.mailbox.outbox import send as put_out
from agent_runtime.mailbox.pane import Pane
from agent_runtime.model.trigger import FIRST_AGENT, RESERVED
from turnkeeper.bus.envelope import Envelope, shown
from turnkeeper.bus.event_log import record_act
from turnkeeper.bus.inbox import Claimed
from turnkeeper.clock import SystemClock
from turnkeeper.console import Output, OutputOption, home, note, show_rows
from turnkeeper.console.commands import App
from turnkeeper.console.lists import Listed, columns, listing
from turnkeeper.console.unseen import plain
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import Conflict, InvalidInput, NotFound

app = App("The inboxes of agents, and their envelopes.")
Agent = Annotated[str, typer.Argument(metavar="AGENT", help="The agent.")]
AnyAgent = Annotated[str, typer.Argument(metavar="[AGENT]", help="The agent; all agents if omitted.")]
POLL_S = 0.5
MOST_DRAINED = 100_000
_INBOXES = columns(
    "AGENT #WAITING #CLAIMED #DELIVERED #QUARANTINED OLDEST=oldest_at READER",
    reader=lambda row: str(row["reader"] or ("agent-runtime, not running" if row["hosted"] else "-")),
)
_ENVELOPES = columns(
    "PLACE FROM KIND AT THREAD +KEY=idempotency_key +NAME TEXT", text=lambda row: clipped(str(row["text"]), 60)
)
_MOST = 1_000_000
_SET_ASIDE = columns("AGENT PLACE NAME AT REASON", reason=lambda row: clipped(str(row["reason"]), 100))


@app.command("list")
@listing(_INBOXES, "agent", limit=50)
def list_(agent: AnyAgent = "") -> Listed:
    """List the inboxes and their readers; with AGENT, list the envelopes that wait for it.

    Example: turnkeeper inbox list codex
    """
    place = home()
    if agent:
        rows = mailbox.envelope_rows(place, agent, _MOST)
        return Listed(rows, "" if rows else f"no envelope waits for {agent}", columns=_ENVELOPES, key="name")
    inboxes = mailbox.inbox_rows(place)
    aside = sum(row["quarantined"] for row in inboxes)
    footer = f"{aside} in quarantine: turnkeeper inbox quarantine" if aside else ""
    return Listed(inboxes, footer or ("" if inboxes else "no inbox yet"))


@app.command("drain")
def drain(
    agent: Agent,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, help="Print at most this number.")] = MOST_DRAINED,
    output: OutputOption = Output.TABLE,
) -> None:
    """Print the envelopes for an agent in a terminal, in a form for the agent, and archive them.

    An envelope is archived after it is printed. If the reader is killed in between, the next one prints it again.

    Example: turnkeeper inbox drain codex
    """
    place, clock = home(), SystemClock()
    mailbox.refuse_hosted(place, agent)
    mailbox.existing(place, agent)
    with mailbox.reading(place, agent, "inbox drain", clock=clock, entropy=SystemEntropy()) as reader:
        if output is Output.JSON:
            batch = list(_waiting(reader, limit))
            show_rows([envelope_row(item.name, item.envelope) for item in batch], (), output, name_key="name")
            for item in batch:
                reader.finish(item, lambda _: None)
            count = len(batch)
        else:
            count = _drain_each(reader, limit, output)
        if aside := reader.quarantined():
            note(f"{aside} in quarantine: turnkeeper inbox quarantine {agent}")
    note(f"{count} envelope{'' if count == 1 else 's'} archived" if count else f"no envelope waits for {agent}")


@app.command("watch")
def watch(
    agent: Agent,
    tmux: Annotated[str, typer.Option(metavar="SESSION", help="The tmux session, or SESSION:WINDOW.PANE.")],
    server: Annotated[
        str, typer.Option("--tmux-server", metavar="NAME", help="The tmux server, as in `tmux -L NAME`.")
    ] = "",
) -> None:
    """Paste each envelope for an agent into the agent's tmux pane, acknowledge it and archive it.

    The command pastes only while the agent waits at an empty prompt that it recognizes: the prompt of Claude Code,
    Codex CLI, Gemini CLI or aider, or the one in `[agents.AGENT] prompt`. Until then the envelopes wait, and tmux shows
    that mail waits. The command runs until SIGTERM or Ctrl-C, or until another program runs in the pane. After a
    watcher was killed, the next watcher pastes at most one envelope again.

    Example: turnkeeper inbox watch codex --tmux codex
    """
    from turnkeeper.config.settings import load_settings  # noqa: PLC0415  takes time to load

    place, clock = home(), SystemClock()
    of_agent = load_settings(place).agents.get(agent)
    pane = Pane(tmux, server=server, prompt=of_agent.prompt if of_agent else "", clock=clock)
    mailbox.refuse_hosted(place, agent)
    program = pane.open()
    how: dict[str, Any] = {"clock": clock, "entropy": SystemEntropy(), "stand_by": True}
    with mailbox.reading(place, agent, "inbox watch", **how) as reader, _stopping() as stopped:
        watching = _Watching(agent, reader, pane)
        watching.adopted = reader.adopt()
        if watching.adopted:
            note(f"adopted {len(watching.adopted)} that an earlier reader left")
        note(f"watching the inbox of {agent} for {program.name}, pid {program.pid}")
        while not stopped():
            if not watching.step():
                clock.block(POLL_S)


@dataclass
class _Watching:
    """The work of `inbox watch`, step by step."""

    agent: str
    reader: Reader
    pane: Pane
    adopted: list[Claimed] = field(default_factory=list)
    waits: str = ""
    cannot: str = ""

    def step(self) -> bool:
        """Paste all envelopes that can be pasted now; return True if there may be more at once."""
        why = self.reader.ready()
        try:
            found = not why and self._paste()
        except self.reader.passing as error:
            why, found = str(error), False
        if why != self.cannot:
            note(why or f"reading the inbox of {self.agent} now")
            self.cannot = why
        return found

    def _paste(self) -> bool:
        # An unclaimed envelope can be withdrawn, because stopping a task withdraws its fire.
        count = len(self.adopted) + self.reader.waiting()
        obstacle = self.pane.obstacle() if count else ""
        waits = f"mail waits for {self.agent} ({count}): {obstacle}" if obstacle else ""
        if waits != self.waits:
            self.pane.say(waits, count if waits else 0)
            if waits:
                note(waits)
            self.waits = waits
        if obstacle or not count:
            return False
        for item in self.adopted[:1] or self.reader.claim():
            self.reader.finish(item, self._deliver)
        del self.adopted[:1]
        return True

    def _deliver(self, envelope: Envelope) -> None:
        self.pane.paste(shown(envelope), buffer=f"turnkeeper-{self.agent}")
        note(f"pasted {envelope.kind} from {envelope.sender}: {clipped(envelope.text, 60)}")


@app.command("send")
def send(
    text: Annotated[str, typer.Argument(help="The message; - reads it from standard input.")],
    sender: Annotated[str, typer.Option("--from", metavar="AGENT", help="The agent in a terminal that sends it.")],
    to: Annotated[str, typer.Option(metavar="AGENT", help="The recipient.")] = FIRST_AGENT,
    thread: Annotated[str, typer.Option(help="The thread of the message that this message answers.")] = "",
    requires_ack: Annotated[bool, typer.Option("--ack", help="Request an acknowledgement.")] = False,
) -> None:
    """Send a message from an agent in a terminal to agent0, through that agent's outbox. No daemon needs to run.

    A writer to the outbox speaks as its agent, and only as that agent. The answer arrives in the agent's inbox.

    Example: turnkeeper inbox send --from codex --to agent0 "CI is green"
    """
    place, clock, entropy = home(), SystemClock(), SystemEntropy()
    mailbox.refuse_hosted(place, sender)
    if sender in RESERVED:
        raise InvalidInput(f"{sender} is not an agent in a terminal", where="--from")
    said = sys.stdin.read() if text == "-" else text
    message = Envelope(
        id=entropy.hex(32),
        sender=sender,
        to=to,
        kind="message",
        text=said,
        at=clock.now(),
        thread=thread,
        requires_ack=requires_ack,
    )
    name = put_out(place, message, clock=clock, entropy=entropy)
    record_act(place.logs, "agent-runtime", "inbox send", f"{sender} {name}", clock)
    note(f"{name} is in the outbox of {sender}; agent-runtime reads it when it runs")
    note(f"read the answer with: turnkeeper inbox drain {sender}")


@app.command("quarantine")
@listing(_SET_ASIDE, "name")
def quarantine(agent: AnyAgent = "") -> Listed:
    """List quarantined files with the reason: envelopes for an agent, and refused messages of an agent in a terminal.

    Example: turnkeeper inbox quarantine agent0
    """
    rows = mailbox.quarantine_rows(home(), agent, refused=True)
    return Listed(
        rows, "put one back with: turnkeeper inbox requeue AGENT NAME [--seal]" if rows else "no file is in quarantine"
    )


@app.command("requeue")
def requeue(
    agent: Agent,
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="The envelope, or the beginning of its name.")] = "",
    everything: Annotated[bool, typer.Option("--all", help="Put back all valid envelopes.")] = False,
    seal: Annotated[bool, typer.Option(help="Trust the envelope, although no program of this home sealed it.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Put an envelope from quarantine back into the inbox, after another check.

    A fire that is recorded as failed stays failed and returns to quarantine, so run its task again instead. Read an
    envelope before you seal it, because agent0 then trusts its contents.

    Example: turnkeeper inbox requeue agent0 0177
    """
    place = home()
    if bool(name) == everything:
        raise InvalidInput("give the name of one envelope, or --all", where="NAME")
    if everything and seal:
        raise InvalidInput("needs the name of one envelope that you have read", where="--seal")
    mailbox.existing(place, agent)
    rows = mailbox.quarantine_rows(place, agent)
    wanted = rows if everything else [_pick(rows, name)]
    done, refused = [], []
    for row in wanted:
        try:
            put = mailbox.put_back(place, agent, row["name"], vouched=seal)
            done.append(row | {"place": "inbox", "name": put.name})
            command = "inbox requeue --seal" if seal else "inbox requeue"
            record_act(place.logs, "agent-runtime", command, f"{agent} {put.name}", SystemClock())
        except InvalidInput as error:
            refused.append(error)
            if not everything:
                raise
    show_rows(done, _SET_ASIDE, output, name_key="name", footer=f"{len(done)} waiting again")
    if refused:
        left = f"{len(refused)} still malformed, the first: {refused[0]}"
        raise InvalidInput(left, where=agent, hint=f"see: turnkeeper inbox quarantine {agent}")


def _drain_each(reader: Reader, limit: int, output: Output) -> int:
    count = 0
    for item in _waiting(reader, limit):
        reader.finish(item, _printer(item, output))
        count += 1
    return count


def _printer(item: Claimed, output: Output) -> Callable[[Envelope], None]:
    def deliver(envelope: Envelope) -> None:
        if output in {Output.JSONL, Output.NAME}:
            show_rows([envelope_row(item.name, envelope)], (), output, name_key="name")
        else:
            print(plain(shown(envelope)), flush=True)

    return deliver


def _waiting(reader: Reader, limit: int) -> Iterator[Claimed]:
    """Yield envelopes that an earlier reader left, then waiting envelopes, claimed one by one and up to the limit."""
    left = limit
    for item in reader.adopt()[:limit]:
        left -= 1
        yield item
    while left > 0 and (taken := reader.claim()):
        left -= 1
        yield taken[0]


def _pick(rows: list[dict[str, Any]], given: str) -> dict[str, Any]:
    found = [row for row in rows if row["name"] == given] or [row for row in rows if row["name"].startswith(given)]
    if not found:
        raise NotFound(f"no quarantined envelope {given[:80]!r}", hint="see: turnkeeper inbox quarantine")
    if len(found) > 1:
        raise Conflict(f"{given!r} is the beginning of {len(found)} names", hint="give more characters of the name")
    return found[0]


@contextmanager
def _stopping() -> Iterator[Callable[[], bool]]:
    """Let SIGTERM and Ctrl-C stop the watcher between two envelopes, never during one."""
    seen: list[int] = []
    before = {
        number: signal.signal(number, lambda got, _: seen.append(got)) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield lambda: bool(seen)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if signal.SIGINT in seen:
        raise KeyboardInterrupt
