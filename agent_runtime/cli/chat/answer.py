"""An author's answers: the lines typed during a conversation, and the command `turnkeeper triage`."""

import json
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer
from rich.text import Text

from agent_runtime.cli.chat.blocks import Safe
from agent_runtime.cli.chat.render import Change, Lines, Panels, render
from agent_runtime.cli.client import ANSWER_S, LOOK_S, again, change, change_in_conversation, complete_channel, refused
from agent_runtime.cli.rows import asked, clipped
from agent_runtime.model.mapping import Row, parsed, to_json
from turnkeeper.clock import SystemClock
from turnkeeper.console import console, note
from turnkeeper.console.unseen import plain
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import InvalidInput, TurnkeeperError
from turnkeeper.rpc.forms import can_stand, option_text, question_of, request_in, ways_of
from turnkeeper.v1 import agent_runtime_pb2 as wire

Does = Literal["approve", "for_task", "reject", "edit", "answer", "say", "help", "list", "quit", "nothing", "problem"]
HELP = (
    "a 1 approve or accept · r 1 why  reject · e 1 {…} approve with these arguments · t 1 text  answer · "
    "f 1 approve, and the same call of this task from now on (f 1 ARG: whatever that argument is) · "
    "w what waits · q quit · /loop 15m text  repeats it · /loop list · /loop stop · "
    "anything else is said to the agent (say … if it looks like one of these)"
)
REFUSED = "not done: "
LONGEST_SHOWN = 2000  # characters of a proposal in a conversation; an ellipsis replaces the rest
_VERBS: dict[str, Does] = {
    "a": "approve",
    "approve": "approve",
    "accept": "approve",
    "f": "for_task",
    "r": "reject",
    "reject": "reject",
    "e": "edit",
    "edit": "edit",
    "t": "answer",
    "answer": "answer",
}
_ALONE: dict[str, Does] = {"?": "help", "help": "help", "w": "list", "q": "quit", "quit": "quit"}


Kind = Literal["interrupt", "candidate", "deviation"]
_UNDECIDED: dict[Kind, str] = {"interrupt": "pending", "candidate": "candidate", "deviation": "open"}


@dataclass(frozen=True, kw_only=True)
class Item:
    """A pending question, call or proposal as it was shown. A decision is bound to this state."""

    kind: Kind
    row: Row

    @property
    def id(self) -> str:
        return str(self.row[f"{self.kind}_id"])

    @property
    def text(self) -> str:
        if self.kind == "interrupt":
            return asked(self.row)
        if self.kind == "deviation":
            return f"{self.row['page_id']}: {self.row['says']} / {self.row['found']}"
        return f"{str(self.row['kind']).removeprefix('candidate-')} “{self.row['title']}”"

    @property
    def is_question(self) -> bool:
        return self.kind == "interrupt" and self.row["kind"] == "question"

    @property
    def is_plain(self) -> bool:
        """True if the question is not about calls, so that any text may answer it."""
        return self.is_question and request_in(self.row) is None

    @property
    def cut(self) -> bool:
        """True if only the beginning was shown, as for a long proposal in a conversation."""
        body = str(self.row.get("body", ""))
        return self.kind == "candidate" and len(body) == LONGEST_SHOWN + 1 and body.endswith("…")


@dataclass(frozen=True, kw_only=True)
class Command:
    """A parsed line of the author.

    Attributes:
        does: the action; `problem` if the line is not valid.
        item: the subject; for a deviation, approve accepts the finding and reject keeps the page.
        text: the reason, the answer, the arguments, the message, or the problem; empty for approve. For an approval for
            the task, this is the arguments that may have any value.
        keep: True if the message does not end a self-paced loop of its thread.
    """

    does: Does
    item: Item | None = None
    text: str = ""
    keep: bool = False


class Waiting:
    """The pending items of the turns that were shown, numbered in order; a number is never reused."""

    def __init__(self) -> None:
        self._items: dict[int, Item] = {}
        self.numbers: dict[str, int] = {}
        self._next = 1

    def update(self, turn: wire.ConversationTurn) -> None:
        for kind, undecided in _UNDECIDED.items():
            for row in map(to_json, getattr(turn, f"{kind}s")):
                self.put(Item(kind=kind, row=row), waits=row.get("status", row.get("lifecycle")) == undecided)

    def put(self, item: Item, *, waits: bool) -> None:
        """Add an item that waits, or remove an item that no longer waits."""
        number = self.numbers.get(item.id)
        if not waits:
            self._items.pop(number or 0, None)
            self.numbers.pop(item.id, None)
            return
        if number is None:
            number, self._next = self._next, self._next + 1
            self.numbers[item.id] = number
        self._items[number] = item

    def get(self, number: int) -> Item | None:
        return self._items.get(number)

    def proposed(self, item: Item) -> Item | None:
        """Return the proposal that is accepted with an item: the item itself, or the candidate of a deviation."""
        candidate_id = str(item.row.get("candidate_id", ""))
        return self.get(self.numbers.get(candidate_id, 0))

    def lines(self) -> list[str]:
        return [f"[{number}] {clipped(item.text, 100)}" for number, item in sorted(self._items.items())]


def parse(line: str, waiting: Waiting) -> Command:
    """Parse a line. Pure.

    >>> parse("r 7 too long", Waiting()).text, parse("read it again", Waiting()).does
    ('no item 7 waits; w lists the waiting items', 'say')
    """
    line = line.strip()
    verb, _, rest = line.partition(" ")
    number, _, text = rest.strip().partition(" ")
    if not line:
        return Command(does="nothing")
    if line in _ALONE:
        return Command(does=_ALONE[line])
    if verb == "say" and rest.strip():
        return Command(does="say", text=rest.strip())
    if verb not in _VERBS or not number.isascii() or not number.isdigit():
        return Command(does="say", text=line)
    item = waiting.get(int(number[:9]))
    if item is None:
        return Command(does="problem", text=f"no item {number[:9]} waits; w lists the waiting items")
    return _checked(_VERBS[verb], item, text.strip(), waiting.proposed(item))


def _checked(does: Does, item: Item, text: str, proposed: Item | None) -> Command:
    problem = ""
    if does == "approve" and text and not item.is_plain:
        problem = "not approved: no text may follow an approval"
    elif does == "approve" and proposed is not None and proposed.cut:
        problem = f"only its beginning was shown; all of it: turnkeeper candidates show {proposed.id}, or triage"
    elif does == "for_task":
        problem = _for_task_problem(item, text)
    elif does == "edit":
        problem = _edit_problem(item, text)
    elif does == "answer" and not item.is_question:
        problem = "that is not a question; a or r decides it"
    elif does == "answer" and not text:
        problem = "the answer is missing; write its text after t"
    elif does in {"approve", "reject", "answer"} and item.is_plain:
        problem = _not_taken(text if does == "answer" else does, item)
    if does == "approve" and item.is_plain and text:
        problem = problem or "no text may follow an approval; t answers with text"
    return Command(does="problem", text=problem) if problem else Command(does=does, item=item, text=text)


def _not_taken(said: str, item: Item) -> str:
    try:
        question_of(item.row).check(said)
    except InvalidInput as error:
        return f"{error.what}; {error.hint}"
    return ""


def _for_task_problem(item: Item, text: str) -> str:
    if item.kind == "interrupt" and can_stand(item.row):
        odd = [name for name in text.split() if name not in item.row["args"]]
        what = f"not approved: the call has no argument {clipped(odd[0], 40)}" if odd else ""
        return f"{what}; f alone keeps all arguments unchanged" if odd else ""
    once = item.row.get("once_only", "")
    told = f"this call can only be approved once: {once}" if once else "only a task's call can be approved for its task"
    return f"{told}; a approves it"


def _edit_problem(item: Item, text: str) -> str:
    if item.kind != "interrupt" or item.is_plain:
        return "only a tool call has arguments to change"
    try:
        fits = isinstance(json.loads(text), dict)
    except ValueError:
        fits = False
    args = clipped(json.dumps(item.row["args"], ensure_ascii=False), 200)
    return "" if fits else f"write all arguments of the call, as a JSON object; they are now: {args}"


def perform(
    command: Command, channel: str, request_id: str, change: Callable[[Any], Any], *, thread_id: str = ""
) -> str:
    """Carry out a command; return one line about the result.

    Args:
        command: approve, reject, edit, answer or say.
        request_id: the id of a message, which makes it idempotent.
        change: calls the runtime.
        thread_id: the thread of a message; empty for the thread of the channel's newest turn.
    """
    try:
        if command.item is None:
            said: Any = {"text": command.text, "request_id": request_id, "keep_loop": command.keep}
            request = wire.SendMessageRequest(channel=channel, thread_id=thread_id, **said)
            return told_sent(change(request), command.text)
        if command.item.kind == "candidate":
            accept = command.does == "approve"
            decided = wire.DecideCandidateRequest(candidate_id=command.item.id, accept=accept, note=command.text)
            change(decided)
            return f"{'accepted' if accept else 'rejected'}: {command.item.text}"
        if command.item.kind == "deviation":
            accept = command.does == "approve"
            settled = wire.ResolveDeviationRequest(deviation_id=command.item.id, accept=accept, note=command.text)
            return f"{change(settled).lifecycle}: {command.item.text}"
        return _resolve(command, command.item, change)
    except TurnkeeperError as error:
        return f"{REFUSED}{error}"


def told_sent(sent: wire.SendMessageResponse, text: str) -> str:
    """Describe the effect of a message: it answers a question, or begins a turn, possibly after pending decisions."""
    left = len(sent.pending_interrupts)
    if sent.HasField("answers"):
        row = to_json(sent.answers)
        said = next(map(option_text, question_of(row).picked(text)), clipped(text, 60))
        more = f"; {left - 1} more for you to decide there" if left > 1 else ""
        return f"answers “{clipped(asked(row), 100)}” with “{said}”; {sent.answers.turn_id} continues with it{more}"
    waits = f"; begins after you decide the {left} that wait there: turnkeeper triage" if left else ""
    return f"{'continues' if sent.continues else 'begins'} thread {sent.thread_id} as {sent.turn_id}{waits}"


def would_end(channel: str, change: Callable[[Any], Any], *, thread_id: str = "") -> str:
    """Return the self-paced loop that a message would end; empty if there is none, or the runtime does not answer."""
    look = wire.SendMessageRequest(channel=channel, thread_id=thread_id, look=True)
    try:
        return str(change(look).takes_over)
    except TurnkeeperError:
        return ""


def _resolve(command: Command, item: Item, change: Callable[[Any], Any]) -> str:
    answers = command.does == "answer" and item.is_plain
    as_json = command.does == "edit" or (answers and command.text[:1] in "{[" and bool(parsed(command.text)))
    request = wire.ResolveInterruptRequest(
        interrupt_id=item.id,
        decision="approve" if command.does == "for_task" else command.does,
        for_task=command.does == "for_task",
        any_value=command.text.split() if command.does == "for_task" else (),
        message=command.text if command.does in {"reject", "answer"} and not as_json else "",
        args_json=command.text if as_json else "",
        args_hash=item.row["args_hash"],  # a digest of the arguments as they were shown
    )
    done = change(request)
    if command.does == "for_task":
        revoke = f"turnkeeper approvals exceptions revoke {done.exception}"
        widely = f" with any {' and any '.join(request.any_value)}," if request.any_value else ""
        return f"approved from now on,{widely} as standing exception {done.exception} ({revoke}): {item.text}"
    if command.does == "answer":
        return f"answered “{clipped(done.message, 60)}”, and the turn continues: {item.text}"
    return f"{_DONE[command.does]}: {item.text.partition(' needs ')[0]}"


_WAYS = {
    "candidate": "[a]ccept, [r]eject why",
    "deviation": "[a]ccept the finding, [r] keep the page",
    "permission": "[a]pprove, [f]or its task, [r]eject why, [e]dit JSON",
    "proposal": "[a]pprove, [f]or its task, [r]eject why, [e]dit JSON",
    "question": "your answer; or [a]pprove: True, [r]eject: False",
}
_OF_CALLS = {
    "approve": "[a]pprove", "reject": "[r]eject why", "edit": "[e]dit JSON", "respond": "[t]ext of the answer",
}  # fmt: skip
_LEAVES = "Enter skips, [q]uit"
_WORDS: dict[str, Does] = _VERBS | {"for": "for_task", "text": "answer"}
_DONE = {
    "approve": "approved, and the turn continues",
    "reject": "rejected, and the turn is told why",
    "edit": "approved as you edited it, and the turn continues",
}


def triage(
    channel: Annotated[str, typer.Argument(help="Only this channel.", autocompletion=complete_channel)] = "",
) -> None:
    """Go through the items that wait for you, one by one: questions, tool calls, proposals and contradictions.

    Example: turnkeeper triage general
    """
    done, seen, going = 0, set[str](), set[str]()
    while (found := _next(channel, seen, going)) is not None:
        turn, waiting, item = found
        seen.add(item.id)
        _show(turn, item)
        said = _ask(waiting, item)
        if said is None:
            note(f"{done} decided; the other items wait")
            return
        if said.item is None:
            continue
        came = perform(said, channel, SystemEntropy().hex(32), change_in_conversation)
        if item.is_question and not came.startswith(REFUSED) and (error := refused(item.row)):
            came = (
                f"{REFUSED}the graph failed on this answer: {error}; {again(item.row | {'decision': said.does}, error)}"
            )
        note(came)
        if said.item.kind == "interrupt" and not came.startswith(REFUSED):
            note(f"its answer: turnkeeper turns show {turn.turn_id}")
        if came.startswith(REFUSED):
            if sys.stdin.isatty():
                seen.discard(item.id)  # the graph will ask it again; the next line of a pipe answers the next item
            else:
                note("it stays open")
        else:
            done += 1
            going |= {turn.turn_id} if item.kind == "interrupt" else set()
    left = sum(1 for _ in _waiting(channel))
    note(f"{done} decided, {left} left" if done or left else "no item waits for you")


def _next(channel: str, seen: Collection[str], going: set[str]) -> tuple[wire.ConversationTurn, Waiting, Item] | None:
    """Return the first pending item that was not shown yet; None if there is none and no decided turn asks again."""
    for turn in _waiting(channel):
        waiting = Waiting()
        waiting.update(turn)
        item = waiting.get(1)
        if item is not None and item.id not in seen:
            return turn, waiting, item
    if not going:
        return None
    clock = SystemClock()
    until = clock.monotonic() + ANSWER_S
    while clock.monotonic() < until and any(
        change(wire.GetTurnRequest(turn_id=turn_id)).status == "running" for turn_id in going
    ):
        clock.block(LOOK_S)  # a moment for a decided turn to end or to ask again
    going.clear()
    return _next(channel, seen, going)


def _waiting(channel: str) -> Iterator[wire.ConversationTurn]:
    """Yield turns that hold one pending item each."""
    asked: Any = change(wire.ListInterruptsRequest(channel=channel))
    for interrupt in asked.interrupts:
        yield wire.ConversationTurn(turn_id=interrupt.turn_id, status="interrupted", interrupts=[interrupt])
    proposed: Any = change(wire.ListCandidatesRequest(channel=channel))
    for candidate in reversed(proposed.candidates):
        yield wire.ConversationTurn(turn_id=candidate.turn_id, status="succeeded", candidates=[candidate])
    found: Any = change(wire.ListDeviationsRequest(channel=channel))
    for deviation in reversed(found.deviations):
        yield wire.ConversationTurn(turn_id=deviation.turn_id, status="succeeded", deviations=[deviation])


def _show(turn: wire.ConversationTurn, item: Item) -> None:
    out = console()
    cause = " · ".join(part for part in (item.row["channel"], item.row["task_name"], turn.turn_id) if part)
    layout = Panels(wide=True) if out.is_terminal else Lines(width=out.width, wide=True)
    out.print()
    if out.is_terminal:
        out.print(Safe(Text(plain(cause), "dim")))
    for block in render(Change(kind=item.kind, turn=turn), layout):
        out.print(Safe(block) if out.is_terminal else block, soft_wrap=not out.is_terminal)


def _ask(waiting: Waiting, item: Item) -> Command | None:
    """Return the decision on the only pending item: a command without an item to skip it, or None to leave."""
    offered = _ways_of(item)
    while True:
        sys.stdout.flush()
        print(f"{offered}, {_LEAVES}\n> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not sys.stdin.isatty():
            print(line.strip(), file=sys.stderr, flush=True)  # echoed, as a terminal shows typed text
        command = typed(line, waiting, item) if line else None
        if command is None or command.does == "nothing" or command.item is not None:
            return command
        note(command.text)


def _ways_of(item: Item) -> str:
    if item.kind != "interrupt":
        return _WAYS[item.kind]
    asks, named = question_of(item.row), ways_of(item.row)
    if "pick" in named:
        return asks.choices if asks.is_closed else f"{asks.choices}, or another answer"
    is_about_calls = item.is_question and not item.is_plain
    return ", ".join(_OF_CALLS[way] for way in named) if is_about_calls else _WAYS[item.row["kind"]]


def typed(line: str, waiting: Waiting, item: Item) -> Command | None:
    """Parse a line as the decision on the only item, whose number is 1; None to leave. Pure.

    A letter and its whole word are equivalent. A plain question accepts any line as its answer; the number or the name
    of an option selects that option.
    """
    line = line.strip()
    verb, _, rest = line.partition(" ")
    if line in {"q", "quit"}:
        return None
    if line in {"", "s", "skip"}:
        return Command(does="nothing")
    if item.is_plain:
        return _answer_of(line, item)
    if verb not in _WORDS:
        return Command(does="problem", text=f"write one of these: {_ways_of(item)}, {_LEAVES}")
    return _checked(_WORDS[verb], item, rest.strip(), waiting.proposed(item))


def _answer_of(line: str, item: Item) -> Command:
    """Parse a line as the decision on a plain question."""
    asks, (verb, _, rest) = question_of(item.row), line.partition(" ")
    said = rest.strip() if verb in {"t", "answer"} and rest.strip() else line
    decides = line in {"a", "approve"} or verb in {"r", "reject"}
    if not decides or asks.options:
        return _checked("answer", item, said, None)
    return Command(does="approve" if line in {"a", "approve"} else "reject", item=item, text=rest.strip())
