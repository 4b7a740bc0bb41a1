"""A conversation on a terminal and in a pipe: shown once, shown whole, and never obeyed."""

import io
import json
import re
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from agent_runtime.cli.chat.answer import Item, Waiting, parse, perform, typed, would_end
from agent_runtime.cli.chat.blocks import Safe
from agent_runtime.cli.chat.follow import Typed
from agent_runtime.cli.chat.render import Lines, Panels, changes_of, known_of, render
from agent_runtime.cli.chat.screen import LineView, Screen
from agent_runtime.graph.engine.model_output import LONGEST_MESSAGE, Listener, LiveOutput, RunningCall
from agent_runtime.model.approval import read_interrupt
from agent_runtime.model.conversation import project
from agent_runtime.model.mapping import to_json
from agent_runtime.service.reads import LONGEST_EXCERPT
from tests.unit.agent_runtime.model.test_conversation import ASKED, FIRE, PROMPT, says
from turnkeeper.console.unseen import as_json
from turnkeeper.errors import Conflict
from turnkeeper.v1 import agent_runtime_pb2 as wire

OURS = re.compile(r"\x1b\[[0-9;]*[mAKHJ]|\r")  # colours, and the moves by which the foot of the screen is drawn anew
OBEYED = re.compile(
    "[\xad\u115f\u1160\u200b\u2060-\u2064\u2800\u3164\ufeff\uffa0\U000e0000-\U000e00ff\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029]"
)
PROPOSED = wire.Candidate(
    candidate_id="c-1", kind="candidate-page", page_id="garden", title="Garden", body="# Garden\n\nOpen.", lifecycle="candidate",
    sources=["garden@2", "https://example.org/a"],
)  # fmt: skip
FOUND = wire.Deviation(
    deviation_id="d-1", kind="contradiction", page_id="garden", page_version=2, says="The pump is old.",
    found="The pump is new.", lifecycle="open",
)  # fmt: skip
RUNNING = replace(FIRE, status="running", ended_at=None)
EVIL = "\x1b[2J\x1b]0;x\x07 \u202eevil\u2066 \x9b31m \u200b\xad\u3164\U000e0041 &#x202e;&rlm;&#8203;&#xE0041;&shy; <b>\x1b[31m</b> \r\n\x0b"


def terminal(width: int = 80) -> Console:
    return Console(
        file=io.StringIO(), force_terminal=True, width=width, height=24, highlight=False, markup=False, emoji=False,
        color_system="truecolor", legacy_windows=False, _environ={},
    )  # fmt: skip


def pipe() -> Console:
    return Console(file=io.StringIO(), width=10_000, highlight=False, markup=False, emoji=False, _environ={})


def written(out: Console) -> str:
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def speech(text: str, *, offset: int = 0, message: str = "m", after: int = 0) -> wire.ConversationTurn:
    said = wire.Speech(after=after, message=message, offset=offset, text=text)
    return wire.ConversationTurn(turn_id="turn-1", thread_id="th", speech=said)


def whole(*, evil: str = "", width: int = 80, wide: bool = False) -> str:
    """Return all that can stand in a turn, on a terminal."""
    messages = [PROMPT, says(f"**Read** it. {evil}", "page_propose"), says(evil or "x", role="tool", position=200)]
    asked = replace(ASKED, question=evil, tool=evil or "memory_put", args_json=json.dumps({"a": evil}))
    candidate, deviation = wire.Candidate(), wire.Deviation()
    candidate.CopyFrom(PROPOSED)
    deviation.CopyFrom(FOUND)
    candidate.title, candidate.body, candidate.note = evil or "Garden", f"# Garden\n\n{evil}", evil
    deviation.says, deviation.why = evil or "old", evil
    turn = project(
        replace(FIRE, task_name=evil or "digest", error=evil, category=evil, thread_id=evil or "th", status="failed"),
        messages, [asked], first=True, proposed=[candidate], deviations=[deviation],
    )  # fmt: skip
    out = terminal(width)
    for change in changes_of(turn):
        for block in render(change, Panels(wide=wide), numbers={"c-1": 3}):
            out.print(Safe(block))
    return written(out)


def test_a_turn_says_what_ran_why_what_it_proposes_and_what_is_asked() -> None:
    text = OURS.sub("", whole())
    for part in (
        "triggered by digest at 2026-11-20 09:00 America/New_York",
        "failed in 2s",
        "→ page_propose(",
        "proposes [3] · page · c-1",
        "it becomes page ",
        "garden@2, https://example.org/a",
        "turnkeeper candidates accept c-1",
        'turnkeeper candidates reject c-1 --note "why"',
        "contradicts · contradiction · d-1",
        "turnkeeper deviations resolve d-1 --keep-canonical",
        "asks you · permission · 1234567890",
        "memory_put needs memory.put",
        "turnkeeper approvals resolve 1234567890 --approve",
        'turnkeeper approvals resolve 1234567890 --reject "why"',
        "turnkeeper approvals resolve 1234567890 --edit JSON",
    ):
        assert part in text
    assert "**Read**" not in text, "what an agent writes is Markdown"


def test_a_proposal_names_no_scope_that_it_lacks_and_has_its_arguments_below_each_other() -> None:
    proposed = replace(ASKED, kind="proposal", question="", args_json=json.dumps({"name": "digest", "text": "Rain."}))
    turn = project(FIRE, [PROMPT], [proposed], first=True)
    (card,) = [one for one in changes_of(turn) if one.kind == "interrupt"]
    lines = [str(block) for block in render(card, Lines(width=80))]
    assert "memory.put" not in "\n".join(lines)
    assert any(line.strip() == "memory_put needs your approval" for line in lines)
    (first,) = [line for line in lines if "name = " in line]
    (second,) = [line for line in lines if "text = " in line]
    assert first.index("name") == second.index("text")


@pytest.mark.parametrize("wide", [False, True])
@given(text=st.text(max_size=80) | st.just(EVIL) | st.text(alphabet="\x1b[]0;m&#x2e\u202e\x9b|-*`\n ", max_size=40))
@settings(max_examples=15, deadline=None)
def test_nothing_from_outside_is_obeyed_or_breaks_the_frame(wide: bool, text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    for width in (80, 120):
        shown = OURS.sub("", whole(evil=text, width=width, wide=wide))
        assert not OBEYED.search(shown)
        assert max(cell_len(line) for line in shown.split("\n")) <= width


@pytest.mark.parametrize("cut", range(len("a\x1b[31mb\u202ec")))
def test_an_escape_sequence_that_comes_in_two_pieces_is_shown_all_the_same(cut: int) -> None:
    evil = "a\x1b[31mb\u202ec"
    for out in (terminal(), pipe()):
        reader: Any = Screen(out) if out.is_terminal else LineView(out)
        reader.take(project(RUNNING, [PROMPT], [], first=True))
        for at, piece in ((0, evil[:cut]), (cut, evil[cut:])):
            reader.take(speech(piece, offset=at))
            if isinstance(reader, Screen):
                reader.draw()
        shown = OURS.sub("", written(out))
        assert not OBEYED.search(shown)
        assert "\\x1b[31mb\\u202ec" in shown


def test_json_stays_json_and_is_never_obeyed() -> None:
    row = to_json(project(FIRE, [PROMPT, says(EVIL)], [], first=True))
    text = as_json([row], indent=2)
    assert not OBEYED.search(text)
    assert json.loads(text) == [row]


def test_words_that_were_read_as_they_came_are_not_printed_again() -> None:
    out = pipe()
    reader = LineView(out)
    reader.take(project(RUNNING, [PROMPT], [], first=True))
    reader.take(speech("one two "))
    reader.take(speech("three", offset=8))
    reader.take(project(FIRE, [PROMPT, says("one two three four", "note")], [], first=True))
    lines = written(out).splitlines()
    assert lines[3] == "  agent      one two three four"
    assert lines[4].startswith("             → note(")
    assert lines[5:] == ["  turn       succeeded in 2s"]


def test_a_message_that_began_anew_is_printed_whole() -> None:
    out = pipe()
    reader = LineView(out)
    reader.take(project(RUNNING, [PROMPT], [], first=True))
    reader.take(speech("one tw"))
    reader.take(speech("other", message="again"))
    assert written(out).endswith("other")
    reader.take(project(FIRE, [PROMPT, says("third")], [], first=True))
    assert "  agent      third" in written(out).splitlines()


def test_a_piece_after_one_that_is_missing_waits_for_the_whole() -> None:
    out = pipe()
    reader = LineView(out)
    reader.take(project(RUNNING, [PROMPT], [], first=True))
    reader.take(speech("lost", offset=4))
    reader.take(project(FIRE, [PROMPT, says("not lost")], [], first=True))
    assert written(out).splitlines()[3:] == ["  agent      not lost", "  turn       succeeded in 2s"]
    screen = Screen(terminal())
    screen.take(project(RUNNING, [PROMPT], [], first=True))
    screen.take(speech("lost", offset=4))
    assert not any("lost" in segment.text for line in screen._region() for segment in line)


def test_a_turn_that_comes_again_after_a_restart_shows_nothing_twice() -> None:
    for out in (terminal(), pipe()):
        reader: Any = Screen(out) if out.is_terminal else LineView(out)
        turn = project(FIRE, [PROMPT, says("Done.")], [ASKED], first=True, proposed=[PROPOSED])
        reader.take(turn)
        before = written(out)
        reader.take(turn)
        assert written(out) == before


def test_what_stands_below_is_taken_away_before_more_is_printed() -> None:
    out = terminal()
    screen = Screen(out, typing=True)
    screen.take(project(RUNNING, [PROMPT], [], first=True))
    screen.take(speech("word " * 400))
    screen.tell("following")
    screen.type("a 1")
    screen.draw()
    foot = OURS.sub("", written(out)).split("\n")
    assert foot[-1] == "> a 1"
    assert foot[-2] == "following"
    assert len(foot) <= 5 + out.height // 2 + 2, "the foot never fills the screen"
    screen.take(project(FIRE, [PROMPT, says("Done.")], [], first=True))
    assert written(out).count("\x1b[1A") == min(out.height // 2, 99) + 1, "one row up for each but the last"


def test_what_is_proposed_follows_the_words_that_go_with_it() -> None:
    running = project(RUNNING, [PROMPT], [], first=True, proposed=[PROPOSED])
    ended = project(FIRE, [PROMPT, says("Proposed.")], [], first=True, proposed=[PROPOSED])
    assert [change.kind for change in changes_of(running)] == ["begun", "message"]
    assert [change.kind for change in changes_of(ended, known_of(running))] == ["message", "candidate", "ended"]
    decided = wire.Candidate()
    decided.CopyFrom(PROPOSED)
    decided.lifecycle = "canonical"
    later = project(FIRE, [PROMPT, says("Proposed.")], [], first=True, proposed=[decided])
    assert [change.kind for change in changes_of(later, known_of(ended))] == ["candidate"]


def waiting() -> Waiting:
    found = Waiting()
    question = replace(ASKED, interrupt_id="q", kind="question", question="Which?", allows_text=True)
    found.update(project(FIRE, [PROMPT], [ASKED, question], first=True, proposed=[PROPOSED], deviations=[FOUND]))
    return found


@pytest.mark.parametrize(
    ("line", "does", "item", "text"),
    [
        ("a 1", "approve", "1234567890abcdef", ""),
        ("approve 1", "approve", "1234567890abcdef", ""),
        ("f 1", "for_task", "1234567890abcdef", ""),
        ("f 1 text", "for_task", "1234567890abcdef", "text"),
        (
            "f 1 hour",
            "problem",
            "",
            "not approved: the call has no argument hour; f alone keeps all arguments unchanged",
        ),
        ("f 3", "problem", "", "only a task's call can be approved for its task; a approves it"),
        ("r 1 not  today", "reject", "1234567890abcdef", "not  today"),
        ('e 1 {"tier": "account"}', "edit", "1234567890abcdef", '{"tier": "account"}'),
        ("t 2 the blue one", "answer", "q", "the blue one"),
        ("accept 3", "approve", "c-1", ""),
        ("r 4", "reject", "d-1", ""),
        ("?", "help", "", ""),
        ("q", "quit", "", ""),
        ("w", "list", "", ""),
        ("", "nothing", "", ""),
        ("a pump was replaced", "say", "", "a pump was replaced"),
        ("say a 1", "say", "", "a 1"),
        ("read 1 page", "say", "", "read 1 page"),
        ("a 9", "problem", "", "no item 9 waits; w lists the waiting items"),
        (
            "e 1 [1]",
            "problem",
            "",
            'write all arguments of the call, as a JSON object; they are now: {"text": "x", "tier": "channel"}',
        ),
        ("e 3 {}", "problem", "", "only a tool call has arguments to change"),
        ("a 2", "approve", "q", ""),
        ("r 2 not yet", "reject", "q", "not yet"),
        ("a 2 the blue one", "problem", "", "no text may follow an approval; t answers with text"),
        ("t 1 yes", "problem", "", "that is not a question; a or r decides it"),
        ("t 2", "problem", "", "the answer is missing; write its text after t"),
        ("a 1 hour meeting is too long", "problem", "", "not approved: no text may follow an approval"),
        ("approve 3 pages a day", "problem", "", "not approved: no text may follow an approval"),
        ("a 4 fine", "problem", "", "not approved: no text may follow an approval"),
    ],
)
def test_what_is_typed_means(line: str, does: str, item: str, text: str) -> None:
    command = parse(line, waiting())
    assert (command.does, command.item.id if command.item else "", command.text) == (does, item, text)


def test_a_decision_binds_to_what_was_shown_and_a_number_is_never_given_again() -> None:
    found, asked = waiting(), list[Any]()

    def change(request: Any) -> Any:
        asked.append(request)
        return request

    perform(parse('e 1 {"a": 1}', found), "general", "r", change)
    assert (asked[0].args_hash, asked[0].args_json, asked[0].decision) == ("h", '{"a": 1}', "edit")
    found.update(project(FIRE, [], [replace(ASKED, status="resolved", decision="edit")], first=True))
    assert found.get(1) is None
    found.put(Item(kind="candidate", row={"candidate_id": "c-2"}), waits=True)
    assert found.numbers["c-2"] == 5


def test_what_is_said_while_one_thread_is_followed_goes_to_that_thread() -> None:
    asked = list[Any]()

    def change(request: Any) -> Any:
        asked.append(request)
        return wire.SendMessageResponse(thread_id="t", takes_over="loop-1")

    perform(parse("hello", waiting()), "general", "r", change, thread_id="t")
    assert would_end("general", change, thread_id="t") == "loop-1"
    assert [(one.channel, one.thread_id, one.look) for one in asked] == [
        ("general", "t", False),
        ("general", "t", True),
    ]


def test_an_approval_for_the_task_is_asked_for_and_says_how_it_ends() -> None:
    asked = list[Any]()

    def change(request: Any) -> Any:
        asked.append(request)
        return wire.Interrupt(exception=3)

    told = perform(parse("f 1 text", waiting()), "general", "r", change)
    assert (asked[0].decision, asked[0].for_task, list(asked[0].any_value)) == ("approve", True, ["text"])
    assert "approvals exceptions revoke 3" in told
    assert "approved from now on, with any text, as" in told
    assert "with any" not in perform(parse("f 1", waiting()), "general", "r", change)
    once = replace(ASKED, once_only="it makes tasks")
    found = Waiting()
    found.update(project(FIRE, [PROMPT], [once], first=True))
    assert parse("f 1", found).text == "this call can only be approved once: it makes tasks; a approves it"


LONG = {f"line-{number}": "word " * 30 + f"end-{number}" for number in range(30)}


@pytest.mark.parametrize("out", [terminal(), pipe()], ids=["terminal", "pipe"])
def test_all_of_a_call_is_shown_while_it_waits(out: Console) -> None:
    reader: Any = Screen(out, typing=True) if out.is_terminal else LineView(out)
    reader.take(project(FIRE, [PROMPT], [replace(ASKED, args_json=json.dumps(LONG))], first=True))
    text = OURS.sub("", written(out))
    assert [key for key in LONG if key not in text or f"end-{key[5:]}" not in text] == []


def test_all_of_a_proposal_is_shown_where_it_can_be_accepted_and_a_beginning_is_not_accepted() -> None:
    out, long = terminal(), wire.Candidate()
    long.CopyFrom(PROPOSED)
    long.body = "\n\n".join(f"Line {number}." for number in range(40))
    screen = Screen(out, typing=True)
    screen.take(project(FIRE, [PROMPT], [], first=True, proposed=[long]))
    assert "Line 39." in written(out)
    assert parse("a 1", screen.waiting).does == "approve"
    long.candidate_id, long.body = "c-2", f"{'x' * LONGEST_EXCERPT}…"
    screen.take(project(FIRE, [PROMPT], [], first=True, proposed=[long]))
    refused = parse("a 2", screen.waiting)
    assert (refused.does, "candidates show c-2" in refused.text) == ("problem", True)
    assert parse("r 2 too long", screen.waiting).does == "reject"
    about = wire.Deviation()
    about.CopyFrom(FOUND)
    about.candidate_id = "c-2"
    screen.take(project(FIRE, [PROMPT], [], first=True, proposed=[long], deviations=[about]))
    assert parse("a 3", screen.waiting).text == refused.text, "who accepts a deviation accepts what it is about"


def test_a_refusal_is_told_and_ends_nothing() -> None:
    def change(_request: Any) -> Any:
        raise Conflict("the arguments differ from those that were shown", hint="look again")

    told = perform(parse("a 1", waiting()), "general", "r", change)
    assert told == "not done: the arguments differ from those that were shown; look again"


@pytest.mark.parametrize(
    ("keys", "lines", "text"),
    [
        (b"hello\r", ["hello"], ""),
        (b"ab\x7fc", [], "ac"),
        (b"one two\x17", [], "one "),
        (b"gone\x15left", [], "left"),
        (b"\x1b[A\x1b[1;5C\x1bOPx\x1by", [], "x"),
        ("grüße".encode(), [], "grüße"),
        (b"a\x00\x07\x9bb", [], "a\ufffdb"),
        (b"one\ntwo\n", ["one", "two"], ""),
    ],
)
def test_keys_become_lines(keys: bytes, lines: list[str], text: str) -> None:
    typed = Typed()
    got = [line for key in keys for line in typed.feed(bytes([key]))]
    assert (got, typed.text) == (lines, text)


async def test_a_slow_reader_gets_longer_pieces_and_holds_nothing_up() -> None:
    live = LiveOutput()
    with live.listen("general") as listener:
        live.begin("turn-1", "th", "general", after=0, message="m")
        for _ in range(10_000):
            live.say("turn-1", "m", "word ")
        [piece] = listener.news(_always)
        assert (piece.offset, len(piece.text)) == (0, 50_000)
        assert listener.news(_always) == []
        for _ in range(60_000):
            live.say("turn-1", "m", "word ")
        [piece] = listener.news(_always)
        assert (piece.offset, piece.offset + len(piece.text)) == (50_000, LONGEST_MESSAGE)
        live.call("turn-1", "th", "general", after=1, call=RunningCall(id="c", name="note", args_json="{}"))
        live.call(
            "turn-1", "th", "general", after=1, call=RunningCall(id="c", name="note", args_json="{}", state="done")
        )
        [piece] = listener.news(_always)
        assert [call.state for call in piece.calls] == ["done"]
        live.over("turn-1")
        assert listener.news(_always) == []
    live.begin("turn-2", "th", "general", after=0, message="m")
    assert not live.followed("general")
    assert not live._states, "nothing is kept for nobody"


def test_who_reads_whole_turns_only_hears_nothing() -> None:
    assert Listener({}, "general").news(_always) == []


def _always(_turn_id: str, _after: int) -> bool:
    return True


def test_a_question_of_which_the_author_was_reminded_is_shown_again_with_the_time_that_is_left() -> None:
    ends = replace(ASKED, expires_at=ASKED.created_at + timedelta(days=36_500))
    told = replace(ends, reminded_at=ASKED.created_at + timedelta(hours=1))
    before, after = (
        project(replace(RUNNING, status="interrupted"), [PROMPT], [each], first=True) for each in (ends, told)
    )
    assert changes_of(after, known_of(after)) == []
    (again,) = changes_of(after, known_of(before))
    out = pipe()
    for part in render(again, Panels(wide=True)):
        out.print(part)
    assert re.search(r"reminded\W+\d{4}-", written(out))
    assert re.search(r"expires\W+\d{4}-.* \(in \d+d", written(out))


def test_what_was_asked_and_decided_stands_before_what_came_of_it() -> None:
    later = replace(says("Done."), at=FIRE.ended_at)
    decided = replace(ASKED, status="resolved", decision="approve", created_at=says("").at + timedelta(seconds=1))
    turn = project(FIRE, [PROMPT, says("", "memory_put"), later], [decided], first=True, proposed=[], deviations=[])
    out = terminal()
    for change in changes_of(turn):
        for block in render(change, Panels()):
            out.print(Safe(block))
    text = OURS.sub("", written(out))
    assert text.index("→ memory_put") < text.index("[approve]") < text.index("Done.")


def shown(messages: list[Any], asked: list[Any], *, wide: bool = False) -> str:
    out = pipe()
    turn = project(FIRE, messages, asked, first=True, proposed=[], deviations=[])
    for block in [block for change in changes_of(turn) for block in render(change, Lines(width=80, wide=wide))]:
        out.print(block)
    return written(out)


def test_an_answer_stands_once_with_its_question() -> None:
    asked = replace(ASKED, kind="question", question="Order it?", args_json="{}", tool="", status="resolved")
    answered = replace(asked, decision="answer", message="yes please")
    by_author = replace(says("yes please"), said=replace(says("").said, role="author", text="yes please"))
    assert shown([PROMPT, by_author, says("Done.")], [answered]).count("yes please") == 1
    assert shown([PROMPT, says("Done.")], [answered]).count("yes please") == 1, "the message was deleted"


@pytest.mark.parametrize("head", ["watchdog to agent0, handoff", "notes for agent0"])
def test_what_a_restart_left_for_the_agent_is_one_line_unless_all_is_asked_for(head: str) -> None:
    left = replace(says(""), said=replace(says("").said, role="trigger", text=f"{head}: two turns were open\nand more"))
    (line,) = [one for one in shown([PROMPT, left, says("Done.")], []).splitlines() if head in one]
    assert line.split() == ["note", *head.split(), "(all", "of", "it:", "-o", "wide)"]
    assert "two turns were open" in shown([PROMPT, left, says("Done.")], [], wide=True)


def asked_alone(value: Any) -> tuple[Waiting, Item]:
    """Return a question as it stands, as triage has it."""
    question = read_interrupt("q", value)
    found, row = (
        Waiting(),
        replace(
            ASKED, interrupt_id="q", kind="question", question=question.question, args_json=json.dumps(question.args)
        ),
    )
    found.update(project(FIRE, [PROMPT], [row], first=True))
    item = found.get(1)
    assert item is not None
    return found, item


OFFERS = {"question": "Order it?", "options": ["yes", "no", "3"]}
NONE = (
    "'{0}' is none of the options: [1] yes  [2] no  [3] 3; "
    "give the word or the number of one; any other answer in JSON's quotes: '\"{0}\"'"
)


@pytest.mark.parametrize(
    ("value", "line", "does", "text"),
    [
        (OFFERS, "yes", "answer", "yes"),
        (OFFERS, "NO", "answer", "NO"),
        (OFFERS, "2", "answer", "2"),
        (OFFERS, "3", "answer", "3"),
        (OFFERS, "t 1", "answer", "1"),
        (OFFERS, '"4"', "answer", '"4"'),
        *((OFFERS, line, "problem", NONE.format(line)) for line in ("4", "approve", "only the small one")),
        (OFFERS, "reject the large one", "problem", NONE.format("reject the large one")),
        (OFFERS | {"allows_text": True}, "only the small one", "answer", "only the small one"),
        ({"options": ["approve", "reject"]}, "approve", "answer", "approve"),
        ("Which?", "the blue one", "answer", "the blue one"),
        ("Which?", "1 yes", "answer", "1 yes"),
        ("Which?", "t reject", "answer", "reject"),
        ("Which?", "approve", "approve", ""),
        ("Which?", "approve nothing", "answer", "approve nothing"),
        ("Which?", "reject not yet", "reject", "not yet"),
        ("Which?", "skip", "nothing", ""),
    ],
)
def test_a_question_is_answered_as_it_is_read(value: Any, line: str, does: str, text: str) -> None:
    waits, item = asked_alone(value)
    command = typed(line, waits, item)
    assert command is not None
    assert (command.does, command.text) == (does, text)
    assert typed("quit", waits, item) is None


@pytest.mark.parametrize(
    ("line", "does", "text"),
    [
        ("approve", "approve", ""),
        ("a", "approve", ""),
        ("for", "for_task", ""),
        ("reject not today", "reject", "not today"),
        ('edit {"tier": "account"}', "edit", '{"tier": "account"}'),
        ("perhaps", "problem", "write one of these: [a]pprove, [f]or its task, [r]eject why, [e]dit JSON, "
         "Enter skips, [q]uit"),
    ],
)  # fmt: skip
def test_triage_takes_letters_and_words(line: str, does: str, text: str) -> None:
    found = Waiting()
    found.update(project(FIRE, [PROMPT], [ASKED], first=True))
    item = found.get(1)
    assert item is not None
    command = typed(line, found, item)
    assert command is not None
    assert (command.does, command.text) == (does, text)
