"""What the three command lines share: options, tables, JSON, times, errors, exit codes and common flags.

Data goes to stdout, notes and errors to stderr. JSON keys are stable, a list is an array, times are RFC 3339 in UTC.
"""

import functools
import gc
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.exceptions import Abort, Exit, TyperException

from turnkeeper import errors
from turnkeeper.clock import Clock, SystemClock
from turnkeeper.config import surfaces
from turnkeeper.config.home import Home, locate, places
from turnkeeper.console import commands
from turnkeeper.console.unseen import as_json, plain
from turnkeeper.errors import EXIT_INTERRUPTED, EXIT_USAGE, Conflict, InvalidInput, TurnkeeperError, Unreachable
from turnkeeper.times import parse_rfc3339, shown_in, written_time

_HOME_HELP = "The state directory; else $TURNKEEPER_HOME, else ~/.turnkeeper."
_TURNKEEPER_HELP = "Run scheduled work for an AI agent, talk with it, and decide what waits for you."
_GAP = 2  # between columns, as kubectl and systemctl print tables
_NARROWEST = 23  # as wide as a date and time with its zone
_NARROWEST_SHORT = 16  # as wide as a short one
_NEEDED = 1  # the highest rank of a column for which a table shows short values
_CUT = "…"
_BAR_AFTER_S = 1.0
_ISO = re.compile(r"(?<!--from )(?<!--to )(?<!--at )\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")
_TIME = re.compile(r"(?:\b[A-Z][a-z]{2} )?\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?: [A-Z][A-Za-z]{1,4}| [+-]\d\d)?")
_COMMAND = "turnkeeper "  # which is copied in one line
_JOINT = "\ue000"  # in place of a blank at which no line is broken
_REFRESH_S = 2.0
_YOUNG = 100_000  # objects made before garbage is looked for: what most commands import and make is less, and stays
_STYLED = frozenset({"FORCE_COLOR", "TTY_COMPATIBLE"})  # by which Rich styles what it writes to a pipe


@dataclass
class _Common:
    home: Path | None = None
    utc: bool = False
    quiet: bool = False
    json: bool = False


_common = _Common()


def run(app: typer.Typer, argv: Sequence[str], cls: type[commands.Group] = commands.Group) -> int:
    """Run `app` on `argv` (without the program's name) and return its exit code.

    `--home DIR`, `--utc`, `--no-color`, `--json` and `-q` are taken from anywhere before a `--`. An error that a person
    is meant to read becomes one line on stderr and the exit code of its class.
    """
    try:
        _check_text(argv)
        rest = _take_common(argv)
        _declare_common(app)
        program: Any = commands.build(app, cls)
        result = program(args=rest, standalone_mode=False, prog_name=Path(sys.argv[0]).name)
        sys.stdout.flush()
    except Exit as stop:
        return stop.exit_code
    except TyperException as error:
        said = error.format_message().replace("Value error, ", "").rstrip(".")
        if _common.json and getattr(error, "option_name", "") == "-o":
            said = "No such option: --json"  # as it was typed
        complain(f"{said}{_see_help(error)}")
        return EXIT_USAGE
    except (KeyboardInterrupt, Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has left: nothing more to say
        return 0
    except Exception as error:
        found = error if isinstance(error, TurnkeeperError) else errors.machine_trouble(error, ours=True)
        if found is None and isinstance(error, OSError) and error.filename:  # such as a file in /proc
            found = TurnkeeperError(error.strerror or str(error), where=str(error.filename))
        if found is None:
            raise
        complain(str(found), str(getattr(error, "caret", "")))
        return found.exit_code
    return result if isinstance(result, int) else 0


def run_process(app: typer.Typer, cls: type[commands.Group] = commands.Group) -> int:
    """Run `app` on the command line of this process, which is to end with the exit code that it returns."""
    gc.set_threshold(_YOUNG, 20, 20)
    code = run(app, sys.argv[1:], cls)
    gc.freeze()  # or the interpreter would look for garbage in all that it drops: a fifth of the time of a command
    return code


def main() -> int:
    """Run `turnkeeper`, the program for people, to which the surfaces add commands; return the exit code."""
    return run_process(program(), commands.Program)


def program() -> commands.App:
    """Return `turnkeeper` with the commands of all installed surfaces."""
    return commands.App(_TURNKEEPER_HELP, surfaces.commands())


def home() -> Home:
    """Return the state directory that `--home` or the environment names. Touches nothing."""
    return locate(_common.home, os.environ)


def home_places() -> list[Path]:
    """Return where the home is, whether or not it is there, then the files that led there, the last one first."""
    return places(_common.home, os.environ)


def when(at: datetime | None, zone: tzinfo | None = None, *, fine: bool = False, day: bool = False) -> str:
    """Write an instant for a table, with its zone: in `zone`, the machine's unless given, or in UTC with `--utc`.

    Empty for None. With `fine`, to the millisecond; with `day`, after the day of the week.
    """
    if at is None:
        return ""
    shown = shown_in(at, UTC if _common.utc else zone)
    fraction = f".{shown.microsecond // 1000:03}" if fine else ""
    week = f"{shown:%a }" if day else ""
    return f"{week}{shown:%Y-%m-%d %H:%M:%S}{fraction}{'Z' if _common.utc else f'{shown: %Z}'}"


def when_short(at: datetime | None) -> str:
    """Write an instant for a narrow table: to the minute, with its zone; in another year, the day. Empty for None."""
    if at is None:
        return ""
    zone = UTC if _common.utc else None
    shown, now = shown_in(at, zone), shown_in(SystemClock().now(), zone)
    return (
        f"{shown:%b %d %H:%M}{'Z' if _common.utc else f'{shown: %Z}'}"
        if shown.year == now.year
        else f"{shown:%Y-%m-%d}"
    )


def is_quiet() -> bool:
    """Return True if the command line asks for data and errors only, by `-q`."""
    return _common.quiet


def for_people(text: str) -> str:
    """Return a text with its instants as people read them, but for those that are a command's options."""
    return _ISO.sub(lambda found: when(parse_rfc3339(found[0]), day=True), text)


def say(text: str, indent: int = 0) -> None:
    """Print sentences; on a terminal broken at words, and never within a time, with what follows indented."""
    _write(_broken(plain(text), indent))


def _broken(text: str, indent: int) -> str:
    """Return a text whose lines a terminal need not break."""
    width = console().width if sys.stdout.isatty() else 0
    if width <= 2 * indent or all(_cells(line) <= width for line in text.split("\n")):
        return text
    whole = _TIME.sub(lambda found: found[0].replace(" ", _JOINT), text)
    wrap = import_module("textwrap").TextWrapper(
        width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    )
    return "\n".join("\n".join(wrap.wrap(line)) or line for line in whole.split("\n")).replace(_JOINT, " ")


def time_given(text: str, *, past: bool = False) -> str:
    """Return a time of the command line in ISO form; every command that takes a time takes it by this."""
    return written_time(text, SystemClock().now().astimezone(), past=past)


def _check_text(argv: Sequence[str]) -> None:
    """Refuse what no message, file or terminal could hold. Raises InvalidInput."""
    for item in argv:
        if any("\ud800" <= letter <= "\udfff" for letter in item):
            raise InvalidInput(f"{item[:60]!a} is not UTF-8", where="command line")


def _take_common(argv: Sequence[str]) -> list[str]:
    global _common  # noqa: PLW0603  one command line, one set of common options
    _common = _Common()
    rest: list[str] = []
    ended: list[str] = []
    items = iter(argv)
    for item in items:
        if item == "--":
            ended = [item, *items]
        if item == "--home":
            _common.home = Path(_following(items))
        elif item.startswith("--home="):
            _common.home = Path(item.removeprefix("--home="))
        elif item == "--utc":
            _common.utc = True
        elif item == "--no-color":
            os.environ["NO_COLOR"] = "1"
        elif item in {"-q", "--quiet"}:
            _common.quiet = True
        elif item == "--json":
            _common.json = True
        else:
            rest.append(item)
    return [*rest, *(("-o", "json") if _common.json else ()), *ended]


def _following(items: Any) -> str:
    value = next(items, None)
    if value is None:
        raise InvalidInput("needs a directory", where="--home")
    return str(value)


def _declare_common(app: typer.Typer) -> None:
    """Add the common flags to the program's own help; they are taken off the line before it is parsed."""
    documented = app.registered_callback.callback if app.registered_callback else None

    def common(
        home: Annotated[Path | None, typer.Option("--home", metavar="DIR", help=_HOME_HELP)] = None,
        utc: Annotated[bool, typer.Option("--utc", help="Show times in UTC.")] = False,
        no_color: Annotated[bool, typer.Option("--no-color", help="Print plain text, as with $NO_COLOR.")] = False,
        quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print data and errors, and nothing else.")] = False,
        json: Annotated[bool, typer.Option("--json", help="Print data as JSON, as with -o json.")] = False,
        version: Annotated[
            bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_show_version)
        ] = False,
    ) -> None:
        del home, utc, no_color, quiet, json, version

    common.__doc__ = documented.__doc__ if documented else app.info.help
    app.callback(context_settings=commands.HELP)(common)


def _show_version(asked: bool) -> None:
    if asked:
        _write(f"turnkeeper {import_module('turnkeeper.config.build').build()}")
        raise Exit(0)


def _see_help(error: TyperException) -> str:
    context = getattr(error, "ctx", None)
    return f"; see: {context.command_path} --help" if context is not None else ""


class Output(StrEnum):
    """How a command prints its data."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    JSONL = "jsonl"
    NAME = "name"


OutputOption = Annotated[
    Output,
    typer.Option(
        "-o",
        "--output",
        metavar="FORM",
        help="How to print: table or wide, for people; json, jsonl or name, for scripts.",
    ),
]
LimitOption = Annotated[int, typer.Option("-n", "--limit", min=1, max=2**31 - 1, help="Show at most this many.")]
CursorOption = Annotated[
    str, typer.Option("--cursor", metavar="CURSOR", help="Show the next page: the cursor that the page before gave.")
]
_AGAIN = "Show it again every two seconds."
StatusOption = Annotated[str, typer.Option("--status", help="Only those with this status, finished ones included.")]


def watched(command: Callable[..., None], *also: str) -> Callable[..., None]:
    """Give a command that lists the option `--watch`, also under other names."""

    @functools.wraps(command)
    def again(*arguments: Any, watch: bool = False, **options: Any) -> None:
        show_again(lambda _now: command(*arguments, **options), watch=watch)

    signature, option = inspect.signature(command), Annotated[bool, typer.Option("-w", "--watch", *also, help=_AGAIN)]
    asked = inspect.Parameter("watch", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=option)
    listed: Any = again
    listed.__signature__ = signature.replace(parameters=[*signature.parameters.values(), asked])
    listed.__annotations__ = {**command.__annotations__, "watch": option}
    return again


def followed(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that lists the option `--watch`, which `--follow` means here too."""
    return watched(command, "--follow")


def show_again(show: Callable[[datetime], None], *, watch: bool, every_s: float = _REFRESH_S) -> None:
    """Show something as of now; with `watch` again every few seconds, until interrupted.

    A daemon that does not answer for a moment does not end it.
    """
    clock = SystemClock()
    if not watch:
        show(clock.now())
    while watch:
        try:
            show(clock.now())
        except Exit:
            pass  # an exit code is for who asks once
        except (Unreachable, Conflict) as away:  # Conflict: another process opened the store just now
            note(str(away))
        sys.stdout.flush()
        clock.block(every_s)
        console().clear()


Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        header: its heading, in capitals.
        value: what it shows of a row.
        wide: shown only by `-o wide`.
        right: aligned right, for numbers.
        rank: how soon the column is left out on a narrow terminal: the highest rank first.
        short: what it shows if the terminal has no room for the columns of rank 0 and 1.
    """

    header: str
    value: Callable[[Row], str]
    wide: bool = False
    right: bool = False
    rank: int = 0
    short: Callable[[Row], str] | None = None


def show_rows(
    rows: Sequence[Row],
    columns: Sequence[Column],
    output: Output,
    *,
    name_key: str,
    footer: str = "",
    in_words: Callable[[Row], str] | None = None,
) -> None:
    """Print a list: JSON as an array, jsonl a line each, names, or a table with its footer on stderr.

    `in_words` says a row in lines of its own, where a table of what a person looks for would be too wide.
    """
    if output is Output.JSON:
        _write(as_json(list(rows), indent=2))
    elif output is Output.JSONL:
        for row in rows:
            _write(as_json(row))
    elif output is Output.NAME:
        for row in rows:
            _write(plain(str(row[name_key])))
    else:
        shown = [column for column in columns if output is Output.WIDE or not column.wide]
        if in_words and output is Output.TABLE:
            for row in rows:
                say(in_words(row), indent=4)
        elif rows:
            _show_table(rows, shown, fit=output is Output.TABLE)
        if footer:
            note(footer)


def show_page(
    rows: Sequence[Row],
    columns: Sequence[Column],
    output: Output,
    *,
    name_key: str,
    page: Any,
    footer: str = "",
    **more: Any,
) -> None:
    """Print a page of a list; `page`, an answer or what `page_of` told, has the `total` and the `next_cursor`.

    What is left is said below it, with the cursor of the next page; also beside JSON. `more` is for `show_rows`.
    """
    names = ("total", "next_cursor")
    total, cursor = (page[name] if isinstance(page, Mapping) else getattr(page, name) for name in names)
    left = f"{total} in all, of which {len(rows)} are shown; the next: --cursor {cursor}"
    rest = [left] if cursor else []
    show_rows(rows, columns, output, name_key=name_key, footer="; ".join(filter(None, [footer, *rest])), **more)
    if rest and output in {Output.JSON, Output.JSONL, Output.NAME}:
        note(left)


def _show_table(rows: Sequence[Row], columns: Sequence[Column], *, fit: bool) -> None:
    width = console().width if fit and sys.stdout.isatty() else None
    lines, hidden = _grid(rows, columns).lines(width)
    if any(column.header in hidden and column.rank <= _NEEDED for column in columns):
        lines, hidden = _grid(rows, columns, short=True).lines(width)
    _print_headed(next(lines), "")
    for line in lines:
        _write(line)
    if hidden and width:
        text = f"hidden columns: {', '.join(hidden)}; to show them: -o wide"
        note("\n".join(import_module("textwrap").wrap(text, width)))


def _grid(rows: Sequence[Row], columns: Sequence[Column], *, short: bool = False) -> "Grid":
    values = [(column.short if short else None) or column.value for column in columns]
    return Grid(
        headers=[column.header for column in columns],
        cells=[[plain(value(row)).replace("\n", " ") for value in values] for row in rows],
        right=[column.right for column in columns],
        ranks=[column.rank for column in columns],
        narrowest=_NARROWEST_SHORT if short and any(column.short for column in columns) else _NARROWEST,
    )


def show_record(record: Row, output: Output, *, name_key: str, lines: Sequence[tuple[str, str]]) -> None:
    """Print one thing: JSON, its name, or aligned `key: value` lines."""
    if output in {Output.JSON, Output.JSONL}:
        _write(as_json(record, indent=2 if output is Output.JSON else None))
    elif output is Output.NAME:
        _write(plain(str(record[name_key])))
    else:
        width = max((len(key) for key, _ in lines), default=0) + 1
        for key, value in lines:
            head = f"{key + ':':<{width}} "
            body = plain(value).replace("\n", "\n" + " " * len(head))
            _print_headed(head, body if _COMMAND in body else _broken(head + body, len(head))[len(head) :])


def console(file: Any = None) -> Any:
    """Return Rich's console for stdout or a file; it honours NO_COLOR, and is never narrower than its data when piped.

    Rich is imported only now: to a pipe there is nothing to write that print cannot.
    """
    file = file or sys.stdout
    width = None if file.isatty() else 10_000
    return import_module("rich.console").Console(file=file, highlight=False, markup=False, emoji=False, width=width)


def _print_headed(head: str, text: str, style: str = "bold", file: Any = None) -> None:
    """Print a text with its head, which stands out on a terminal."""
    file = file or sys.stdout
    if file.isatty() or not _STYLED.isdisjoint(os.environ):
        both = import_module("rich.text").Text.assemble((head, style), text)
        console(file).print(both, soft_wrap=True)
    else:
        print((head + text).expandtabs(8), file=file)


def note(text: str) -> None:
    """Print a message for the user on stderr, unless they want none (`-q`)."""
    if _common.quiet:
        return
    sys.stdout.flush()
    print(plain(text), file=sys.stderr)  # noqa: T201


def complain(line: str, detail: str = "") -> None:
    """Print an error: one line, then the detail (a caret under the bad field) if there is any."""
    _print_headed("error: ", plain(line).replace("\n", " "), "bold red", sys.stderr)
    if detail:
        _print_headed("", plain(detail), file=sys.stderr)


def status(message: str) -> AbstractContextManager[object]:
    """Show a spinner on stderr while a block runs, if there is a terminal to show it on."""
    if not sys.stderr.isatty():
        return nullcontext()
    spinner: AbstractContextManager[object] = import_module("rich.console").Console(file=sys.stderr).status(message)
    return spinner


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Cells with their headings.

    Attributes:
        headers: one a column.
        cells: rows of as many texts, in one line each.
        right: whether a column is aligned right.
        ranks: how soon each column is left out, the highest rank first; all alike if not given.
        narrowest: the width below which no cell is cut.
    """

    headers: Sequence[str]
    cells: Sequence[Sequence[str]]
    right: Sequence[bool]
    ranks: Sequence[int] = ()
    narrowest: int = _NARROWEST

    def lines(self, width: int | None = None) -> tuple[Iterator[str], Sequence[str]]:
        """Return the lines, headings first, and the headings of the columns that `width` has no room for.

        Wide columns are cut first, the widest most, as far as that helps. Then columns are left out, of the highest
        rank the last one first. The first column always stays. Without a width every cell is whole.
        """
        widths = [max(map(_cells, texts)) for texts in zip(self.headers, *self.cells, strict=True)]
        shown = list(range(len(widths)))
        if width is not None:
            ranks = self.ranks or [0] * len(widths)
            while len(shown) > 1 and _total([min(widths[at], self.narrowest) for at in shown]) > width:
                shown.remove(max(shown[1:], key=lambda at: (ranks[at], at)))
            cut = _narrowed([widths[at] for at in shown], width, self.narrowest)
            widths = [dict(zip(shown, cut, strict=True)).get(at, 0) for at in range(len(widths))]
        return self._lines(shown, widths), [name for at, name in enumerate(self.headers) if at not in shown]

    def _lines(self, shown: Sequence[int], widths: Sequence[int]) -> Iterator[str]:
        for line in (self.headers, *self.cells):
            yield (" " * _GAP).join(_placed(line[at], widths[at], self.right[at]) for at in shown).rstrip()


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _narrowed(widths: Sequence[int], width: int, narrowest: int) -> list[int]:
    """Return the widths with the widest columns cut to one size, so that all fit."""
    cap = max(widths)
    while cap > narrowest and _total([min(one, cap) for one in widths]) > width:
        cap -= 1
    return [min(one, cap) for one in widths]


def _cells(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    return len(text) if text.isascii() and text.isprintable() else int(import_module("rich.cells").cell_len(text))


def _placed(text: str, width: int, right: bool) -> str:
    size = _cells(text)
    if size > width:
        return str(import_module("rich.cells").set_cell_size(text, max(0, width - 1))) + _CUT
    return " " * (width - size) + text if right else text + " " * (width - size)


@contextmanager
def bar(what: str, total: int, *, clock: Clock | None = None, out: Any = None) -> Iterator[Callable[[int], None]]:
    """Give a function that counts what is done; shown as a bar after a second, if stderr is a terminal.

    Args:
        what: a word or two before the bar.
        total: how much there is to do.
        clock: the machine's, unless a test passes another.
        out: likewise; stderr.
    """
    clock = clock or SystemClock()
    began, done = clock.monotonic(), 0
    with ExitStack() as shown:
        progress: Any = None

        def screen() -> Any:
            return out or import_module("rich.console").Console(file=sys.stderr)

        def count(more: int) -> None:
            nonlocal progress, done
            done += more
            if progress is None and clock.monotonic() - began > _BAR_AFTER_S and screen().is_terminal:
                rich = import_module("rich.progress")
                columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), rich.MofNCompleteColumn())
                shape = rich.Progress(*columns, rich.TimeRemainingColumn(), console=screen(), transient=True)
                progress = shown.enter_context(shape)
                progress.add_task(what, total=total)
            if progress is not None:
                progress.update(progress.task_ids[0], completed=done)

        yield count


def _write(text: str) -> None:
    print(text)  # noqa: T201
