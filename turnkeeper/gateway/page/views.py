"""Display values of the page, made from the daemons' answers. This module asks, awaits and renders nothing."""

import difflib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from turnkeeper.console.unseen import counted, in_words, plain
from turnkeeper.errors import BUDGET
from turnkeeper.gateway.page.stores import Outage, Run, Spent
from turnkeeper.gateway.page.text import fields, instant, pairs_in, pretty, unmarked
from turnkeeper.gateway.page.when import typed
from turnkeeper.rpc import forms
from turnkeeper.times import format_rough
from turnkeeper.v1 import agent_runtime_pb2 as agents
from turnkeeper.v1 import schedules_pb2 as schedules

MOST_LISTED, NEXT_LISTED = 40, 10  # rows per task in the table of a timeline
BEGINNING = 80  # characters of arguments in a short display
OPEN_TURN = frozenset({"running", "interrupted", "paused"})
# Colours of states. The word for a state is always beside its colour.
TONES = (
    dict.fromkeys(
        ("succeeded", "active", "canonical", "kept", "accepted", "approve", "edit", "answer", "ready"), "good"
    )
    | dict.fromkeys(("failed", "quarantined", "expired", "rejected", "reject", "missed", "stale"), "bad")
    | dict.fromkeys(
        ("interrupted", "waiting", "held", "paused", "pending", "candidate", "open", "skipped", "draining"), "warn"
    )
    | dict.fromkeys(("running", "sent"), "live")
)
_DOES = {"permission": "asks to call", "proposal": "proposes to call", "question": "asks you"}
_DID = {"permission": "asked to call", "proposal": "proposed to call", "question": "asked you"}

UNMET = ("its approval was rejected", "its approval expired")  # so begins the error of a turn whose fire is rejected


def tone(state: str) -> str:
    """Return the colour of a state. If there are several words, the last one decides.

    >>> tone("succeeded"), tone("runtime stale"), tone("unheard of")
    ('good', 'bad', 'calm')
    """
    return TONES.get(state.rpartition(" ")[2], "calm")


@dataclass(frozen=True, kw_only=True)
class Card:
    """A decision that is pending or was made.

    Attributes:
        kind: interrupt, candidate or deviation.
        id: the id of the approval, candidate or deviation.
        does: a short phrase before the title.
        ways: approve, reject, edit, answer, for_task; empty if the decision is no longer pending.
        of: the message of the approval, candidate or deviation.
        args: the call's arguments, in full.
        args_hash: the hash of the arguments: the decision is valid only for them.
        body: Markdown written by the agent.
        diff: lines of a comparison with the current page.
    """

    kind: str
    id: str
    does: str
    title: str
    ways: Sequence[str]
    of: Any
    state: str
    args: str = ""
    args_hash: str = ""
    body: str = ""
    diff: Sequence[str] = ()
    facts: Sequence[tuple[str, object]] = ()
    note: str = ""
    expires_at: Any = None
    options: Sequence[str] = ()

    @property
    def waits(self) -> bool:
        return bool(self.ways)

    @property
    def is_plain(self) -> bool:
        """True for a graph's question in a form of its own."""
        return self.kind == "interrupt" and forms.is_plain(self.of)

    @property
    def begins(self) -> str:
        """The beginning of the arguments, question or proposal, in one line."""
        asks = self.body if self.is_plain else ""
        pairs = ", ".join(f"{name}: {value}" for name, value, _ in pairs_in(self.args))
        shown = unmarked(asks) or pairs or (self.args if self.args not in {"", "{}"} else unmarked(self.body))
        text = " ".join(shown.split())
        return text if len(text) <= BEGINNING else f"{text[:BEGINNING]}…"

    @property
    def about(self) -> str:
        """The subject of the decision in one line: title, beginning, task."""
        task = f", asked by {self.of.task_name}" if self.of.task_name else ""
        return f"{self.title}{f' “{self.begins}”' if self.begins else ''}{task}"


def card_of_interrupt(one: agents.Interrupt) -> Card:
    asks, question = forms.request_in(one), forms.question_of(one)
    calls = json.loads(one.args_json)["calls"] if asks is not None else []
    title = ", ".join(call["tool"] for call in calls) or one.tool or {"question": "a question"}.get(one.kind, one.kind)
    shown = pretty(one.args_json)
    if one.kind == "question":
        value = calls[0]["args"] if len(calls) == 1 else calls or (question.more if question.text else question.value)
        shown = json.dumps(value, indent=2, ensure_ascii=False) if value and isinstance(value, list | dict) else ""
    missing = "" if one.kind == "proposal" else one.missing_scope  # the category grants it, but is not autonomous
    facts = {"missing scope": missing, "category": one.category, "only this once": one.once_only}
    facts = {name: said for name, said in facts.items() if f" {said} " not in f" {one.question} "}  # shown only once
    does = _DOES if one.status == "pending" else _DID
    return Card(
        kind="interrupt", id=one.interrupt_id, does=does.get(one.kind, one.kind), title=title,
        ways=_ways(one) if one.status == "pending" else (), of=one, state=one.decision or one.status,
        args=shown, args_hash=one.args_hash, body=one.question, facts=fields(facts), note=one.message,
        options=[*map(forms.option_text, question.options)],
        expires_at=one.expires_at if one.HasField("expires_at") else None,
    )  # fmt: skip


def _ways(one: agents.Interrupt) -> list[str]:
    ways = ["answer" if way == "respond" else way for way in forms.ways_of(one)]
    return [*ways, "for_task"] if forms.can_stand(one) else ways


_NO_PAGE = "it is marked as accepted in this channel; no page changes"


def card_of_candidate(one: agents.Candidate, base: agents.Page | None = None) -> Card:
    """Return the card of a proposed page or summary, compared with the page that it would replace."""
    diff: Sequence[str] = ()
    stale = base is not None and base.version != one.base_version
    if base is not None and not stale:
        lines = difflib.unified_diff(base.body.splitlines(), one.body.splitlines(), "now", "proposed", lineterm="", n=2)
        diff = list(lines)[2:]
    note = f"the page has changed since: it is now at version {base.version}" if stale and base is not None else ""
    becomes = f"it becomes page {one.page_id}; the previous version is kept" if one.page_id else _NO_PAGE
    facts = {"page": one.page_id, "made from version": one.base_version, "from": ", ".join(one.sources), "": note}
    facts |= {"if accepted": becomes if one.lifecycle == "candidate" else ""}
    return Card(
        kind="candidate", id=one.candidate_id, does="proposes a page" if one.page_id else "proposes a summary",
        title=one.title, ways=("approve", "reject") if one.lifecycle == "candidate" else (), of=one,
        state=one.lifecycle, body=one.body, diff=diff, facts=fields(facts), note=one.note,
    )  # fmt: skip


def card_of_deviation(one: agents.Deviation) -> Card:
    facts = {"the page says": one.says, "what was found": one.found, "it stands in": one.source, "why": one.why}
    return Card(
        kind="deviation", id=one.deviation_id, does="contradicts the page", title=one.page_id,
        ways=("approve", "reject") if one.lifecycle == "open" else (), of=one, state=one.lifecycle,
        facts=fields(facts), note=one.note,
    )  # fmt: skip


class Call(NamedTuple):
    """A tool call with its result. None while there is none."""

    name: str
    args: str
    result: str | None


class Said(NamedTuple):
    """Consecutive text of one speaker, with the tool calls that follow it."""

    role: str
    text: str
    calls: list[Call]


def said_in(turn: agents.ConversationTurn) -> list[Said]:
    """Return a turn's messages. Calls that no text separates form one group, and each has its result."""
    results = {message.tool_call_id: message.text for message in turn.messages if message.tool_call_id}
    found: list[Said] = []
    for message in (one for one in turn.messages if not one.tool_call_id):
        calls = [Call(call.name, pretty(call.args_json), results.get(call.id)) for call in message.tool_calls]
        if found and calls and not message.text and found[-1].role == message.role:
            found[-1].calls.extend(calls)
        else:
            found.append(Said(message.role, message.text, calls))
    return found


def cards_in(turn: agents.ConversationTurn) -> list[Card]:
    return [
        *map(card_of_interrupt, turn.interrupts),
        *map(card_of_candidate, turn.candidates),
        *map(card_of_deviation, turn.deviations),
    ]


_ORIGINS = {"web": "the page", "cli": "the command line", "conversation": "a terminal", "mcp": "MCP", "api": "the API"}


def origin_of(via: str, note: str = "") -> str:
    """Describe the origin of a decision, PROGRAM/SURFACE/KEY, or one word; by its `note`, the standing exception.

    >>> origin_of("gateway/web"), origin_of("agent-runtime/cli"), origin_of("gateway/web/link"), origin_of("bot/mcp/k1")
    ('the page', 'the command line', 'the page, link', 'MCP, bot, k1')
    >>> origin_of("unknown"), origin_of("agent-runtime/cli", "allowed by standing exception 1")
    ('unknown', 'standing exception 1')
    """
    if note.startswith("allowed by standing exception "):
        return note.removeprefix("allowed by ")
    program, *rest = via.split("/")
    surface, *key = rest or [program]
    return ", ".join([_ORIGINS.get(surface, surface), *([program] if surface in {"mcp", "api"} else []), *key])


def mark_of(mark: agents.TriggerMark) -> str:
    """Describe the fire that triggered a turn: its kind, and the number of scheduled times that it covers."""
    if not mark.fire_id:
        return ""
    kind = {"scheduled": "on schedule", "manual": "run by hand", "wake": "woke itself"}.get(mark.kind, mark.kind)
    return f"{kind}, stands for {mark.stands_for} times" if mark.stands_for > 1 else kind


def why_of(fire: schedules.Fire) -> str:
    """Return the reasons for a fire's outcome, in the form for lists."""
    late = f"{format_rough(fire.late_s)} late" if fire.late_s >= 1 and fire.outcome != "skipped" else ""
    asked = {"manual": "run by hand", "backfill": "backfilled"}.get(fire.kind, "")
    many = f"stands for {fire.count} times" if fire.count > 1 and fire.outcome != "skipped" else ""
    times = f"{fire.count} times" if fire.count > 1 and fire.outcome == "skipped" else ""
    return ", ".join(filter(None, [asked, fire.reason, times, many, late, fire.cause]))


def went_wrong(fires: Iterable[schedules.Fire], since: datetime) -> list[schedules.Fire]:
    """Return, in order, the fires from `since` on that failed, did not run, or cover several scheduled times.

    Omit what a pause skipped, because the author wanted that.
    """
    bad = (fire for fire in fires if fire.outcome in {"failed", "rejected", "skipped", "cancelled"} or fire.count > 1)
    bad = (fire for fire in bad if (fire.outcome, fire.reason) != ("skipped", "paused"))
    times = ((fire, instant(fire.fired_at) or instant(fire.nominal_at)) for fire in bad)
    return [fire for fire, at in times if at is not None and at >= since]


def stopped_by_budget(tasks: Iterable[schedules.Task]) -> list[tuple[schedules.Task, str]]:
    """Return the tasks that their budget stops now, each with the limit and the amount used."""
    why = ((task, task.paused_note.removeprefix(BUDGET)) for task in tasks if task.state == "paused")
    return [(task, limit) for task, limit in why if limit != task.paused_note]


def still_wait(tasks: Iterable[schedules.Task], asked: Iterable[agents.Interrupt]) -> list[schedules.Task]:
    """Return the tasks whose open fire waits. Omit a task whose questions are answered, before its runner knows it."""
    asks = {name for one in asked for name in (one.task_name, one.thread_id)}
    open_ = (one for one in tasks if one.waits_for)
    return [one for one in open_ if "approvals list" not in one.waits_for or asks & {one.spec.name, one.spec.thread_id}]


def soonest(tasks: Iterable[schedules.Task], most: int) -> list[schedules.Task]:
    """Return the first `most` tasks by next fire time, soonest first."""
    armed = [task for task in tasks if task.HasField("next_fire_at")]
    return sorted(armed, key=lambda task: task.next_fire_at.ToNanoseconds())[:most]


def is_loop(task: schedules.Task) -> bool:
    return task.id.startswith("loop-")


def state_of(task: schedules.Task) -> str:
    return in_words(task.state, loop=is_loop(task) or task.kind == "dynamic")


def by(spent: Iterable[Spent], key: str, prices: Any = None) -> list[tuple[str, int, int, int, int]]:
    """Return turns, tokens read, tokens written, and their cost in millionths, which is 0 without prices.

    Add the numbers up by `day` (newest first), or by `name` or `model` (most tokens first).
    """
    found: dict[str, list[int]] = {}
    for one in spent:
        sums, tokens = found.setdefault(getattr(one, key), [0, 0, 0, 0]), (one.tokens_in, one.tokens_out)
        added = one.turns, *tokens, prices.money(one.model, *tokens) if prices else 0
        sums[:] = [total + more for total, more in zip(sums, added, strict=True)]
    rows = [(name, turns, read, wrote, money) for name, (turns, read, wrote, money) in found.items()]
    return sorted(rows, reverse=True) if key == "day" else sorted(rows, key=lambda row: (-row[2] - row[3], row[0]))


def day_of(day: str) -> str:
    """Format a day for lists.

    >>> day_of("2026-11-07")
    '7 Nov'
    """
    at = datetime.fromisoformat(day)
    return f"{at.day} {at:%b}"


def counts_of(tasks: Iterable[schedules.Task]) -> list[tuple[str, int]]:
    return sorted(Counter(task.state for task in tasks).items())


def chosen(tasks: Iterable[schedules.Task], query: Mapping[str, str]) -> list[schedules.Task]:
    """Return the tasks that match the query: by state, channel, and words in the name or the prompt."""
    state, channel, words = (query.get(name, "") for name in ("state", "channel", "q"))
    return [
        task
        for task in tasks
        if (not state or task.state == state)
        and (not channel or task.spec.channel == channel)
        and all(word in f"{task.spec.name} {task.spec.prompt}".lower() for word in words.lower().split())
    ]


def matching(named: Iterable[tuple[str, str, str]], query: str) -> list[tuple[str, str, str]]:
    """Return the entries whose kind and name contain all words of the query.

    >>> matching([("Tasks", "Daily news", "a"), ("Pages", "News", "b")], "news task")
    [('Tasks', 'Daily news', 'a')]
    """
    words = query.lower().split()
    return [one for one in named if all(word in f"{one[0]} {one[1]}".lower() for word in words)]


def skips(task: schedules.Task, one: schedules.Nominal) -> bool:
    """Return True if a task's current pause skips one of its next times."""
    ends = task.paused_until.ToNanoseconds() if task.HasField("paused_until") else None
    return task.state == "paused" and (ends is None or one.due_at.ToNanoseconds() < ends)


SCHEDULES = ("cron", "every", "at", "rrule")
EDITED = ("timezone", "prompt", "input_json", "category", "channel", "catch_up", "overlap", "grace", "jitter")
_SUCCEEDED, _AFTER = "task.succeeded", "after="  # the event and the filter of a task that follows others


def form_of(task: schedules.Task) -> dict[str, str]:
    kind = task.spec.WhichOneof("schedule") or ""
    when = str(getattr(task.spec, kind)) if kind in SCHEDULES else ""
    after = [one.removeprefix(_AFTER) for one in task.spec.filters if one.startswith(_AFTER)]
    given = {name: str(getattr(task.spec, name)) for name in EDITED} | {"input_json": pretty(task.spec.input_json)}
    return {"when": when, "after": "".join(after[:1] if task.spec.on == _SUCCEEDED else ()), **given}


def _follow(spec: schedules.TaskSpec, after: str) -> None:
    """Let a task fire after other tasks, named as a,b. Without a name, remove the event."""
    others = [one for one in spec.filters if not one.startswith(_AFTER)] if spec.on == _SUCCEEDED else []
    for name in ("on", "filters") if after else ("on", "filters", "debounce"):
        spec.ClearField(name)
    if after:
        spec.on = _SUCCEEDED
        spec.filters.extend([*others, f"{_AFTER}{after.replace(' ', '')}"])


def edited(task: schedules.Task, form: Mapping[str, str], now: datetime) -> schedules.TaskSpec:
    """Return the task's spec with the changes in the form. `now` is in the task's zone. Raises InvalidInput.

    If the form returns a value unchanged, with hidden characters escaped, the value stays unchanged.
    """
    spec, before = schedules.TaskSpec(), form_of(task)
    spec.CopyFrom(task.spec)
    given = {key: form[key].replace("\r\n", "\n") for key in before if key in form}
    changed = {key for key, value in given.items() if value not in {before[key], plain(before[key])}}
    if "after" in changed:
        _follow(spec, given["after"].strip())
    if "when" in changed and not given["when"].strip() and spec.on:
        spec.ClearField(spec.WhichOneof("schedule") or "cron")
    elif "when" in changed:
        setattr(spec, *typed(given["when"], now))
    for name in changed & set(EDITED):
        setattr(spec, name, given[name] if name == "prompt" else given[name].strip())
    if "catch_up" in changed and "overlap" not in changed:
        spec.ClearField("overlap")  # each policy has its own default
    return spec


NEW = {"name": "", "when": "", "after": "", "channel": "general"} | dict.fromkeys(set(EDITED) - {"channel"}, "")


def made(form: Mapping[str, str], now: datetime) -> schedules.TaskSpec:
    """Return the spec of a new task. Empty fields of the form get the runner's defaults. Raises InvalidInput."""
    given = {key: value.replace("\r\n", "\n").strip() for key, value in form.items() if key in NEW and value.strip()}
    spec, when = schedules.TaskSpec(), given.pop("when", "")
    _follow(spec, given.pop("after", ""))
    for name, value in [*given.items(), *([typed(when, now)] if when else [])]:
        setattr(spec, name, value)
    return spec


def differences(task: schedules.Task, form: Mapping[str, str]) -> list[tuple[str, Sequence[str]]]:
    """Return the fields that the form changes, each with its removed and added lines."""
    before = form_of(task)
    sides = {key: (before[key].splitlines(), form[key].splitlines()) for key in before if form[key] != before[key]}
    return [(key, [*difflib.unified_diff(old, new, lineterm="", n=1)][3:]) for key, (old, new) in sides.items()]


def side_by_side(answer: schedules.UpdateTaskResponse) -> list[tuple[Any, Any]]:
    """Pair the times before and after a change. None if one side has fewer."""
    old, new = ([one.nominal_at for one in side] for side in (answer.old_next, answer.new_next))
    most = max(len(old), len(new))
    return [(old[at] if at < len(old) else None, new[at] if at < len(new) else None) for at in range(most)]


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A mark on a lane, in percent of the lane's width.

    Attributes:
        kind: planned, fired, failed, skipped, waits.
        late: the width of the bar from its due time to its start.
        count, to: for several marks that are drawn as one, their number and the position of the last one.
    """

    kind: str
    x: float
    late: float
    ran: float
    at: datetime
    text: str
    count: int = 1
    to: float = 0.0


@dataclass(kw_only=True)
class Lane:
    task: str
    zone: str
    marks: list[Mark] = field(default_factory=list)

    @property
    def drawn(self) -> list[Mark]:
        """The marks without overlaps: several neighbours that ran, are planned or were skipped become one mark."""
        found: list[Mark] = []
        for mark in self.marks:
            last = found[-1] if found else None
            is_plain = mark.kind in _MERGED and not mark.late
            if last and is_plain and last.kind == mark.kind and not last.late and mark.x - max(last.x, last.to) < CLOSE:
                found[-1] = replace(last, count=last.count + 1, to=mark.x)
            else:
                found.append(mark)
        return found

    @property
    def odd(self) -> list[Mark]:
        """The newest marks of fires that did not go as planned."""
        runs = ("running", "sent", "accepted", "pending")
        odd = (mark for mark in self.marks if mark.late or mark.kind in {"failed", "skipped", "waits"})
        return [mark for mark in odd if not mark.text.startswith(runs)][-MOST_LISTED:]

    @property
    def listed(self) -> list[Mark]:
        """The marks that fit into a table: the newest past ones, and the next ones."""
        past = [mark for mark in self.marks if mark.kind != "planned"]
        ahead = [mark for mark in self.marks if mark.kind == "planned"]
        return past[-MOST_LISTED:] + ahead[:NEXT_LISTED]


@dataclass(frozen=True, kw_only=True)
class Window:
    begin: datetime
    now: datetime
    end: datetime

    def x(self, at: datetime) -> float:
        """Return the position of an instant, from 0 to 100 percent."""
        return round(100 * min(1.0, max(0.0, (at - self.begin) / (self.end - self.begin))), 3)

    def ticks(self) -> list[tuple[float, datetime]]:
        """Return at most twelve dividing lines, at even local times."""
        step = next((one for one in _STEPS if (self.end - self.begin) / one <= _MOST_TICKS), _STEPS[-1])
        local = self.begin.astimezone()
        midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
        first = midnight + step * ((local - midnight) // step + 1)
        found = [first + step * number for number in range(_MOST_TICKS + 1)]
        return [(self.x(at), at) for at in found if self.begin < at < self.end]

    def label(self, at: datetime) -> str:
        """Return the text of a dividing line: the part of the time that distinguishes it from its neighbours."""
        span = self.end - self.begin
        if span > timedelta(days=10):
            return f"{at.day} {at:%b}"
        if span > timedelta(days=2) or f"{at:%H%M%S}" == "000000":
            return f"{at:%a} {at.day}"
        return f"{at:%H:%M:%S}" if span <= timedelta(minutes=2) else f"{at:%H:%M}"


class Band(NamedTuple):
    """A period in which a daemon was unavailable: its position and width in percent, and the reason."""

    daemon: str
    x: float
    width: float
    begin: datetime
    end: datetime
    says: str


def bands_of(outages: Iterable[Outage], window: Window) -> list[Band]:
    """Return the outages in the window. Join outages of one daemon that touch. Omit past ones shorter than a second."""
    spans: list[Outage] = []
    for one in sorted(outages, key=lambda one: (one.daemon, one.begin)):
        last = spans[-1] if spans else None
        if last and last.daemon == one.daemon and one.begin <= last.end + _TOUCH:
            says = last.says if one.says in last.says else f"{last.says}, then {one.says}"
            spans[-1] = Outage(one.daemon, says, last.begin, max(one.end, last.end))
        else:
            spans.append(one)
    return [
        Band(daemon, window.x(begin), round(window.x(end) - window.x(begin), 3), begin, end, says)
        for daemon, says, begin, end in spans
        if begin < window.end and end > window.begin and (end >= window.now or end - begin >= _SHORTEST)
    ]


_SHORTEST = timedelta(seconds=1)  # the start of a daemon takes less
_TOUCH = timedelta(seconds=10)  # a daemon that runs records its presence every 5 s
LATE_S = 1.0  # a delay of this many seconds is shown
_MERGED = frozenset({"fired", "planned", "skipped"})
CLOSE = 1.2  # percent of a lane within which two marks would touch
_MOST_TICKS = 12
_STEPS = (
    timedelta(seconds=10), timedelta(minutes=2), timedelta(minutes=10), timedelta(hours=1), timedelta(hours=6),
    timedelta(days=1), timedelta(days=5), timedelta(days=31),
)  # fmt: skip
_KINDS = {"succeeded": "fired", "skipped": "skipped", "coalesced": "skipped"}
_KINDS |= dict.fromkeys(("failed", "rejected", "cancelled"), "failed")


def sign_of(run: Run) -> str:
    """Return the sign of a fire in a strip. A fire that ran late has a separate sign.

    >>> at = datetime(2026, 11, 20)
    >>> [sign_of(Run(outcome, "", at, late)) for outcome, late in (("succeeded", 0), ("succeeded", 60), ("failed", 60))]
    ['fired', 'caught', 'failed']
    """
    kind = _KINDS.get(run.outcome, "waits")
    return "caught" if kind == "fired" and run.late_s >= LATE_S else kind


def run_text(run: Run) -> str:
    """Describe a fire of a strip without its time: the outcome, the delay and the reason."""
    late = f"{format_rough(run.late_s)} late" if run.late_s >= LATE_S else ""
    return ", ".join(filter(None, [in_words(run.outcome), late, run.reason]))


def strip_text(runs: Sequence[Run]) -> str:
    """Describe a strip for people who do not see it.

    >>> at = datetime(2026, 11, 20)
    >>> strip_text([Run("succeeded", "", at, 0), Run("succeeded", "", at, 0), Run("failed", "no disk", at, 0)])
    'The last 3 runs: 2 succeeded, 1 failed. The newest: failed, no disk'
    """
    counts = ", ".join(f"{many} {in_words(outcome)}" for outcome, many in Counter(run.outcome for run in runs).items())
    return f"The last {counted(len(runs), 'run')}: {counts}. The newest: {run_text(runs[-1])}"


def lanes_of(
    fires: Iterable[schedules.Fire], ahead: Iterable[schedules.SimulatedRow], zones: Mapping[str, str], window: Window
) -> list[Lane]:
    """Return a lane for each task with marks in the window, by name."""
    lanes: dict[str, Lane] = {}

    def lane(task: str) -> Lane:
        return lanes.setdefault(task, Lane(task=task, zone=zones.get(task, "")))

    for fire in fires:
        at = instant(fire.nominal_at)
        if at is not None and window.begin <= at <= window.end:
            lane(fire.task_name).marks.append(_mark(fire, at, window))
    for row in ahead:
        at = instant(row.nominal_at)
        if at is not None and max(window.now, window.begin) <= at <= window.end:
            text = f"planned: {row.reason or row.outcome}" if not row.HasField("fired_at") else "planned"
            lane(row.task).marks.append(Mark(kind="planned", x=window.x(at), late=0, ran=0, at=at, text=text))
    for one in lanes.values():
        one.marks.sort(key=lambda mark: mark.at)
    return [lanes[name] for name in sorted(lanes)]


def _mark(fire: schedules.Fire, at: datetime, window: Window) -> Mark:
    due = instant(fire.due_at) or at
    began = instant(fire.started_at) or instant(fire.fired_at) or due
    ended = instant(fire.ended_at) or (window.now if fire.outcome in {"running", "accepted", "sent"} else began)
    kind = _KINDS.get(fire.outcome, "waits")
    x = window.x(due if kind == "skipped" else began)
    late = window.x(began) - window.x(due) if kind != "skipped" and fire.late_s >= 1 else 0.0
    ran = window.x(ended) - window.x(began) if kind != "skipped" else 0.0
    text = ": ".join(filter(None, [in_words(fire.outcome), why_of(fire)]))
    return Mark(kind=kind, x=x, late=round(max(late, 0), 3), ran=round(max(ran, 0), 3), at=at, text=text)
