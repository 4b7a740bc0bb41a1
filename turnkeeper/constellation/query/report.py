"""The page of `turnkeeper report`: its queries, and the conversion of rows to one HTML page; pure.

Each section is the answer to one SELECT of :data:`QUESTIONS`. The page is self-contained: it loads nothing and runs no
code, and every name is shown as text.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from turnkeeper.console.unseen import plain
from turnkeeper.times import format_rough

MOST_BARS = 100  # most rows of a section; the JSON form contains the others
_TOKENS = "count(*) AS turns, sum(tokens_in) AS tokens_in, sum(tokens_out) AS tokens_out"
_WAITED = "coalesce(waited_s, round((julianday('{until}') - julianday(asked_at)) * 86400, 3))"


class Question(NamedTuple):
    """The query of a section, as the parts of one SELECT.

    Attributes:
        at: the column that must be within the period of the report.
        figures: the columns that are computed for each group.
        condition: a further condition, added with AND or OR.
    """

    table: str
    at: str
    by: str
    figures: str
    condition: str = ""

    def select(self, since: str, until: str) -> str:
        """Return the SELECT for a period, whose ends are texts in the form of the tables."""
        groups = ", ".join(str(place + 1) for place in range(self.by.count(" AS ")))
        when = f"{self.at} >= '{since}' AND {self.at} < '{until}' {self.condition}"
        columns = f"{self.by}, {self.figures}".replace("{until}", until)
        return f"SELECT {columns} FROM {self.table} WHERE {when} GROUP BY {groups} ORDER BY {groups}"  # noqa: S608  ours


QUESTIONS = {
    "fires": Question(
        "fires",
        at="due_at",
        by="coalesce(task, task_id) AS task, outcome AS outcome",
        figures="count(*) AS fires, sum(covers) AS times",
    ),
    "lateness": Question(
        "fires",
        at="due_at",
        by="coalesce(task, task_id) AS task",
        figures="count(*) AS fires, avg(late_s) AS mean_s, max(late_s) AS worst_s, sum(late_s < 1) AS under_1s,"
        " sum(late_s >= 1 AND late_s < 10) AS under_10s, sum(late_s >= 10 AND late_s < 60) AS under_1m,"
        " sum(late_s >= 60 AND late_s < 3600) AS under_1h, sum(late_s >= 3600) AS later",
        condition="AND sent_at IS NOT NULL",
    ),
    "turns": Question(
        "turns",
        at="started_at",
        by="coalesce(task, '(no task)') AS task",
        figures=f"{_TOKENS}, avg(took_s) AS mean_s, max(took_s) AS worst_s",
    ),
    "days": Question("turns", at="started_at", by="substr(started_at, 1, 10) AS day", figures=_TOKENS),
    "models": Question(
        "turn_models",
        at="started_at",
        by="coalesce(task, '(no task)') AS task, substr(started_at, 1, 10) AS day, model AS model",
        figures=_TOKENS,
    ),
    "approvals": Question(
        "approvals",
        at="asked_at",
        by="coalesce(nullif(tool, ''), kind) AS asked, coalesce(nullif(decision, ''), status) AS answer",
        figures=f"count(*) AS questions, avg({_WAITED}) AS mean_s, max({_WAITED}) AS worst_s",
        condition="OR status = 'pending'",
    ),
    "restarts": Question("restarts", at="at", by="process AS process, phase AS phase", figures="count(*) AS starts"),
}
_LATE = {
    "under_1s": ("good", "within 1 s"),
    "under_10s": ("fine", "within 10 s"),
    "under_1m": ("idle", "within a minute"),
    "under_1h": ("warn", "within an hour"),
    "later": ("bad", "later"),
}
_OUTCOMES = {"succeeded": "good", "failed": "bad"} | dict.fromkeys(("rejected", "cancelled"), "warn")
_OUTCOMES |= dict.fromkeys(("skipped", "coalesced"), "idle")
_PHASES = {"verified": "good", "failed": "bad", "refused": "warn"}
_STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1d2330; --soft: #5a6273; --line: #e6e9ef;
  --good: #2e9e5b; --fine: #8ccb6a; --idle: #a9b0bd; --warn: #e39a1b; --bad: #d2453d; --open: #4b7fd6;
  --more: #a9c3ef; }
@media (prefers-color-scheme: dark) { :root { --back: #14171d; --text: #e4e8f0; --soft: #98a1b3; --line: #272d38;
  --good: #3fb971; --fine: #7fb35f; --idle: #667085; --warn: #e0a53a; --bad: #e8645c; --open: #6c9cf0;
  --more: #35507f; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 52rem; padding: 1rem; background: var(--back); color: var(--text);
  font: 16px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 0; }
p { color: var(--soft); margin: .2rem 0 .6rem; } ul { list-style: none; margin: 0; padding: 0; }
li { margin: .5rem 0; } .name { font-weight: 600; } .name, .said, p { overflow-wrap: anywhere; }
.said { color: var(--soft); font-size: .875rem; } .said span { display: inline-block; margin-right: .9rem; }
.said b { display: inline-block; width: .6rem; height: .6rem; border-radius: 2px; margin-right: .3rem; }
.bar { display: flex; height: .75rem; background: var(--line); border-radius: 3px; overflow: hidden; margin: .15rem 0; }
.bar i { min-width: 1px; } .note { border-left: 3px solid var(--warn); padding-left: .6rem; }
.good { background: var(--good); } .fine { background: var(--fine); } .idle { background: var(--idle); }
.warn { background: var(--warn); } .bad { background: var(--bad); } .open { background: var(--open); }
.more { background: var(--more); }
"""
Row = Mapping[str, Any]


class Bar(NamedTuple):
    """A bar: its name, its parts with colour, size and label, and more text."""

    name: str
    parts: Sequence[tuple[str, float, str]]
    said: str = ""

    def size(self) -> float:
        return sum(size for _, size, _ in self.parts)


def page(since: str, until: str, answers: Mapping[str, Sequence[Row]], notes: Iterable[str]) -> str:
    """Return the page for the rows of each section. Notes name the parts that could not be read."""
    head = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>Turnkeeper report</title><style>{_STYLE}</style></head><body>"
        f"<h1>Turnkeeper report</h1><p>{_text(_minute(since))} to {_text(_minute(until))} UTC</p>"
    )
    said = "".join(f'<p class="note">{_text(note)}</p>' for note in notes)
    nothing = "" if any(answers.values()) else "<p>Nothing is recorded in this time.</p>"
    return f"{head}{said}{nothing}{''.join(_sections(answers))}</body></html>\n"


def _sections(answers: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    fires, turns = answers.get("fires", ()), answers.get("turns", ())
    yield _section(
        "Fires by outcome",
        "Of each task; those that were due in this time.",
        _stacked(fires, "task", "outcome", _OUTCOMES),
    )
    yield _section(
        "Lateness",
        "The time from a fire's due time until it was sent.",
        sorted((_late(row) for row in answers.get("lateness", ())), key=lambda bar: -bar.size()),
    )
    yield _section(
        "Duration of turns", "Mean, and the longest.", [_span(row["task"], row, row["turns"], "turn") for row in turns]
    )
    yield _section(
        "Tokens of turns", "Tokens of each task: read, and written.", [_tokens(row, "task") for row in turns]
    )
    yield _section("Tokens by day", "Days in UTC.", [_tokens(row, "day") for row in answers.get("days", ())])
    yield _section("Tokens by model", "Of all tasks.", [_tokens(row, "model") for row in _by_model(answers)])
    asked = [
        _span(f"{row['asked']}: {row['answer']}", row, row["questions"], "question")
        for row in answers.get("approvals", ())
    ]
    yield _section("Waiting time of approvals", "Mean, and the longest; a pending approval counts until now.", asked)
    starts = _stacked(answers.get("restarts", ()), "process", "phase", _PHASES)
    yield _section("Restarts", "Starts by the supervisor, by the phase reached.", starts)


def _stacked(rows: Iterable[Row], by: str, kind: str, colours: Mapping[str, str]) -> list[Bar]:
    """Return a bar for each value of `by`, with a part for each value of `kind`. The largest comes first."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(str(row[by]), []).append(row)
    bars = []
    for name, group in groups.items():
        counts = [
            (str(row[kind]), row["fires" if "fires" in row else "starts"], row.get("times") or 0) for row in group
        ]
        counts.sort(key=lambda count: [*colours].index(count[0]) if count[0] in colours else len(colours))
        parts = [
            (colours.get(one, "open"), count, f"{count:,} {one}{f' ({times:,} times)' if times > count else ''}")
            for one, count, times in counts
        ]
        bars.append(Bar(name, parts))
    return sorted(bars, key=lambda bar: -bar.size())


def _late(row: Row) -> Bar:
    parts = [(colour, row[name], f"{row[name]:,} {words}") for name, (colour, words) in _LATE.items() if row[name]]
    return Bar(row["task"], parts, f"mean {_seconds(row['mean_s'])}, worst {_seconds(row['worst_s'])}")


def _span(name: str, row: Row, count: int, what: str) -> Bar:
    mean, worst = row["mean_s"] or 0, row["worst_s"] or 0
    counted = f"{count:,} {what}{'' if count == 1 else 's'}"
    parts = [("open", mean, f"mean {_seconds(row['mean_s'])}")]
    parts += [("more", worst - mean, f"longest {_seconds(worst)}")] if worst > mean else []
    return Bar(name, parts, counted)


def _tokens(row: Row, by: str) -> Bar:
    read, wrote = row["tokens_in"] or 0, row["tokens_out"] or 0
    turns = f"{row['turns']:,} turn{'' if row['turns'] == 1 else 's'}"
    turns += f", {row['money']:,.2f} in money" if "money" in row else ""
    return Bar(row[by], [("more", read, f"{read:,} read"), ("open", wrote, f"{wrote:,} written")], turns)


def _by_model(answers: Mapping[str, Sequence[Row]]) -> list[Row]:
    """Return the tokens of each model for all tasks and days, with the largest number first."""
    found: dict[str, Counter[str]] = {}
    for row in answers.get("models", ()):
        numbers = {key: value for key, value in row.items() if isinstance(value, int | float)}
        found.setdefault(row["model"] or "(not known)", Counter()).update(numbers)
    rows: list[Row] = [{"model": model, **sums} for model, sums in found.items()]
    return sorted(rows, key=lambda row: -row["tokens_in"] - row["tokens_out"])


def _section(title: str, what: str, bars: Sequence[Bar]) -> str:
    scale = max((bar.size() for bar in bars), default=0) or 1
    shown = "".join(_drawn(bar, scale) for bar in bars[:MOST_BARS])
    left = len(bars) - MOST_BARS
    more = f"<p>{left:,} more are in: turnkeeper report -o json</p>" if left > 0 else ""
    return f"<h2>{title}</h2><p>{what if bars else 'None.'}</p><ul>{shown}</ul>{more}"


def _drawn(bar: Bar, scale: float) -> str:
    parts = "".join(
        f'<i class="{colour}" style="width:{100 * size / scale:.2f}%"></i>' for colour, size, _ in bar.parts
    )
    drawn = f'<div class="bar" aria-hidden="true">{parts}</div>'
    said = [f'<span><b class="{colour}"></b>{_text(words)}</span>' for colour, _, words in bar.parts]
    said += [f"<span>{_text(bar.said)}</span>"] if bar.said else []
    return f'<li><div class="name">{_text(bar.name)}</div>{drawn}<div class="said">{" ".join(said)}</div></li>'


def _minute(instant: str) -> str:
    return instant[:16].replace("T", " ")


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    return f"{seconds:.3g} s" if seconds < 60 else format_rough(seconds)


def _text(text: str) -> str:
    return escape(plain(text).replace("\n", " "))
