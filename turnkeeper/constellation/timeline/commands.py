"""`turnkeeper events`: the events of a home in order of time, and the story of one fire, turn or approval."""

import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import typer

from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.config.settings import load_settings
from turnkeeper.console import Output, OutputOption, home, note, time_given, when
from turnkeeper.console.unseen import as_json, plain
from turnkeeper.constellation.timeline import records
from turnkeeper.constellation.timeline.sentences import gap, say
from turnkeeper.constellation.timeline.sources import Sources
from turnkeeper.constellation.timeline.stores import FOREVER_US, WAIT_S, Wanted
from turnkeeper.errors import InvalidInput, NotFound, TurnkeeperError
from turnkeeper.storage.schema_revision import older_stores, told
from turnkeeper.times import FORMS, from_us, rfc3339, to_us

_POLL_S = 0.5
_OVERLAP_US = 10_000_000  # microseconds: how late a line may be written


def events(
    since: Annotated[str, typer.Option(help="The start: 2h, yesterday, 2026-11-22T02:00.")] = "24h",
    until: Annotated[str | None, typer.Option(help="The end; by default now.")] = None,
    agent: Annotated[str, typer.Option(help="Only events of this agent.")] = "",
    task: Annotated[str, typer.Option(help="Only events of this task: its name or id.")] = "",
    thread: Annotated[str, typer.Option(help="Only events of this thread.")] = "",
    channel: Annotated[str, typer.Option(help="Only events of this channel.")] = "",
    kind: Annotated[
        list[str] | None, typer.Option(help="Only this kind, such as fire or fire.sent. May be repeated.")
    ] = None,
    turn: Annotated[str, typer.Option(help="Only events of this turn.")] = "",
    trace: Annotated[
        str, typer.Option(metavar="ID", help="The whole story of one fire, turn or approval, at any time.")
    ] = "",
    limit: Annotated[
        int, typer.Option("-n", "--limit", min=0, max=2**31 - 1, help="At most the newest N; 0 for all.")
    ] = 1000,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Keep printing new events.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Print what happened in the home, in order of time, from every process, store and marker.

    It needs no daemon. If a source cannot be read, stderr names it, and the others are printed. `-o wide` adds the kind
    and the ids to each line. With `--limit 0`, a line is printed as soon as it is read.

    Example: turnkeeper events --since 2h --task nightly
    """
    place = home()
    show = _Show(place, output)
    now = SystemClock().now()
    wanted = Wanted(
        since_us=to_us(instant(since, show.zone, "--since")),
        until_us=to_us(instant(until, show.zone, "--until") if until else now),
    )
    if follow and (trace or until):
        raise InvalidInput("cannot be used with --trace or --until", where="--follow")
    for path in older_stores(place, WAIT_S):
        note(told(path))
    sources = Sources(place)
    try:
        if follow:
            wanted = replace(wanted, until_us=sources.stores.now_us())
        if trace:
            show.story(_story(sources, trace))
            return
        chosen = records.Filter(
            kinds=frozenset(kind or ()), agent=agent, task=task, thread=thread, channel=channel, turn=turn
        )
        known = records.Known(**sources.stores.lookups())
        seen = Counter[str]()
        show.all(_newest(_chosen(_counted(records.merge(sources.read(wanted)), seen), known, chosen), limit))
        if not show.count and chosen != records.Filter():
            note(_nothing(seen, chosen))
        if follow:
            show.all(_chosen(_followed(sources, wanted.until_us), known, chosen))
    finally:
        show.close()
        sources.stores.close()
        for name, why in sorted(sources.skipped.items()):
            note(f"{name}: {why}; its events are missing here")


def _counted(passed: Iterator[records.Record], seen: Counter[str]) -> Iterator[records.Record]:
    """Pass records on, and count them by the first part of their kinds."""
    for record in passed:
        seen[record.kind.partition(".")[0]] += 1
        yield record


def _nothing(seen: Counter[str], chosen: records.Filter) -> str:
    """Return the message that no record matched, with the kinds that were found."""
    kinds = ", ".join(f"{kind} ({count})" for kind, count in sorted(seen.items()))
    if not kinds:
        return "nothing happened in that time; for more of it: --since 7d"
    asked = f"the kind {' or '.join(sorted(chosen.kinds))}" if chosen.kinds else "what was asked for"
    return f"nothing of {asked} happened in that time; its events are of these kinds: {kinds}"


def instant(text: str, zone: ZoneInfo | None, where: str) -> datetime:
    """Parse a time from the command line, in `zone` or else in the machine's zone. Raises InvalidInput."""
    written = time_given(text, past=True)
    try:
        at = datetime.fromisoformat(written)
    except ValueError as error:
        hint = f"write 2026-11-22T02:00, {FORMS}"
        raise InvalidInput(f"{text[:40]!r} is not a time", where=where, hint=hint) from error
    return at if at.tzinfo else at.replace(tzinfo=zone) if zone else at.astimezone()


def zone_of(place: Home) -> ZoneInfo | None:
    """Return the time zone in a home's settings. Return None if the settings name no zone or cannot be read."""
    try:
        name = load_settings(place).scheduler.timezone
    except TurnkeeperError as error:
        note(f"the machine's time zone is used: {error}")
        return None
    return ZoneInfo(name) if name else None


def _chosen(passed: Iterator[records.Record], known: records.Known, chosen: records.Filter) -> Iterator[records.Record]:
    return (record for record in map(known.complete, passed) if chosen.takes(record))


def _newest(passed: Iterator[records.Record], limit: int) -> Iterator[records.Record]:
    if not limit:
        yield from passed
        return
    newest: deque[records.Record] = deque(maxlen=limit)
    count = 0
    for count, record in enumerate(passed, 1):  # noqa: B007
        newest.append(record)
    yield from newest
    if count > limit:
        note(f"the newest {limit} of {count} events are shown; for more: --limit")


def _followed(sources: Sources, from_us: int) -> Iterator[records.Record]:
    """Yield the records after an instant, until cancelled."""
    told: dict[str, int] = {}
    while True:
        now_us = sources.stores.now_us()
        wanted = Wanted(since_us=from_us - _OVERLAP_US, until_us=FOREVER_US)
        told = {line: at for line, at in told.items() if at >= wanted.since_us}
        for record in records.merge(sources.news(wanted)):
            line = as_json([record.at_us, record.kind, record.process, records.step_of(record) or record.fields])
            if line not in told:
                told[line] = record.at_us
                if record.at_us >= from_us:
                    yield record
        if sources.stores.is_whole:  # otherwise read that time again when the database can be read
            from_us = max(from_us, now_us - _OVERLAP_US)
        sys.stdout.flush()
        sources.stores.wait(_POLL_S)


def _story(sources: Sources, id_: str) -> list[records.Record]:
    """Return every step that belongs to an id, and the events of processes in that time. Raises NotFound."""
    ids, found = frozenset({id_}), list[records.Record]()
    while True:
        known = records.Known(**sources.stores.lookups())
        before, found = ids, []
        for record in map(
            known.complete, records.merge(sources.read(Wanted(since_us=0, until_us=FOREVER_US, ids=ids)))
        ):
            if more := records.linked(record, ids):
                ids |= more
                found.append(record)
            if len(found) >= records.LONGEST_STORY:
                note(f"the story is cut after {records.LONGEST_STORY} steps")
                break
        if ids == before or len(found) >= records.LONGEST_STORY:
            break
    if not found:
        raise NotFound(f"nothing is known of {id_[:80]!r}", where="--trace", hint="turnkeeper events -o wide shows ids")
    meanwhile = Wanted(since_us=found[0].at_us, until_us=found[-1].at_us)
    streams = [*sources.trails(meanwhile), sources.restarts(meanwhile)]
    beside = (record for stream in streams for record in stream if record.kind.startswith(records.LIFECYCLE))
    own = {(record.at_us, record.kind, record.process) for record in found}
    added = [record for record in beside if (record.at_us, record.kind, record.process) not in own]
    return sorted([*found, *added], key=lambda record: record.at_us)


class _Show:
    """The printer of records as they arrive: one line each for people, JSON for programs."""

    def __init__(self, place: Home, output: Output) -> None:
        self.zone = zone_of(place)
        self._output = output
        self.count = 0

    def all(self, passed: Iterable[records.Record]) -> None:
        for record in passed:
            self._one(record, "")

    def story(self, passed: list[records.Record]) -> None:
        before = passed[0].at_us
        for record in passed:
            self._one(record, gap(before, record.at_us))
            before = record.at_us

    def close(self) -> None:
        if self._output is Output.JSON:
            print("\n]" if self.count else "[]")

    def _one(self, record: records.Record, after: str) -> None:
        self.count += 1
        text = say(record, lambda at: when(at, self.zone))
        if self._output is Output.JSON:
            print("[\n" if self.count == 1 else ",\n", as_json(_row(record, text)), sep="", end="")
        elif self._output is Output.JSONL:
            print(as_json(_row(record, text)))
        elif self._output is Output.NAME:
            print(plain(next((str(record.fields[name]) for name in _IDS if record.fields.get(name)), record.kind)))
        else:
            print(plain(self._line(record, after, text)).replace("\n", " "))

    def _line(self, record: records.Record, after: str, text: str) -> str:
        at = when(from_us(record.at_us), self.zone, fine=True)
        ids = {name: record.fields[name] for name in _IDS if record.fields.get(name)}
        wide = [record.kind, record.source, *(f"{name}={value}" for name, value in ids.items())]
        return "  ".join(
            [at, *([f"{after:>9}"] if after else []), text, *(wide if self._output is Output.WIDE else [])]
        )


_IDS = ("fire_id", "turn_id", "interrupt_id", "task_id", "thread_id", "channel", "agent", "id")


def _row(record: records.Record, text: str) -> dict[str, Any]:
    own = {
        "at": rfc3339(from_us(record.at_us)),
        "event": record.kind,
        "source": record.source,
        "process": record.process,
    }
    return own | {"text": text} | {name: value for name, value in record.fields.items() if name not in own}
