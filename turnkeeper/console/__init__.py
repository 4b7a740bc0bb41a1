"""Code that the three command lines share: options, tables, JSON, times, errors, exit codes and common flags.

Data goes to stdout; notes and errors go to stderr. JSON keys are stable, lists are arrays, times are RFC 3339 in UTC.
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
from turnkeeper.times import parse_rfc3339, shown_in, written_time

_HOME_HELP = "The state directory; else $TURNKEEPER_HOME, else ~/.turnkeeper."
_TURNKEEPER_HELP = "Run scheduled work for an AI agent, talk with it, and decide what waits for you."
_GAP = 2  # blanks between columns, as in tables of kubectl and systemctl
_NARROWEST = 23  # width of a date and a time with its zone
_NARROWEST_SHORT = 16  # width of a short date and time
_NEEDED = 1  # highest rank of the columns that a table shows with short values rather than omit them
_CUT = "…"
_BAR_AFTER_S = 1.0
_ISO = re.compile(r"(?<!--from )(?<!--to )(?<!--at )\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")
_TIME = r"(?:\b[A-Z][a-z]{2} )?\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?: [A-Z][A-Za-z]{1,4}| [+-]\d\d)?"
_OTHERS = r"\b(?:(?:systemctl|loginctl|launchctl|chmod|kill) |export [A-Z_]+=).+|^  \S.+"  # commands to copy
_WHOLE = re.compile(rf"{_TIME}|\bturnkeeper [^;·,()]+[^;·,() ]|{_OTHERS}")
_JOINT = "\ue000"  # the mark for a space where a line must not break
_REFRESH_S = 2.0
_YOUNG = 100_000  # objects before the first garbage collection; most commands make fewer, and keep them
_STYLED = frozenset({"FORCE_COLOR", "TTY_COMPATIBLE"})  # if one of these is set, Rich styles its output to a pipe


@dataclass
class _Common:
    home: Path | None = None
    utc: bool = False
    quiet: bool = False
    json: bool = False


_common = _Common()


def run(app: commands.App, argv: Sequence[str], cls: type[commands.Group] = commands.Group) -> int:
    """Run `app` on `argv` (without the program's name) and return its exit code.

    `--home DIR`, `--utc`, `--no-color`, `--json` and `-q` are accepted at any position before a `--`. An error that is
    meant for people becomes one line on stderr and the exit code of its class.
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
            said = "No such option: --json"  # the option in the user's spelling
        context = getattr(error, "ctx", None)
        complain(f"{said}; see: {context.command_path} --help" if context is not None else said)
        return errors.EXIT_USAGE
    except (KeyboardInterrupt, Abort):
        return errors.EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has closed the pipe
        return 0
    except Exception as error:
        found = error if isinstance(error, errors.TurnkeeperError) else errors.machine_trouble(error, ours=True)
        if found is None and isinstance(error, OSError) and error.filename:  # for example a file in /proc
            found = errors.TurnkeeperError(error.strerror or str(error), where=str(error.filename))
        if found is None:
            raise
        complain(str(found), str(getattr(error, "caret", "")))
        return found.exit_code
    return result if isinstance(result, int) else 0


def run_process(app: commands.App, cls: type[commands.Group] = commands.Group) -> int:
    """Run `app` on the command line of this process. Return the exit code for the process."""
    gc.set_threshold(_YOUNG, 20, 20)
    code = run(app, sys.argv[1:], cls)
    gc.freeze()  # otherwise the interpreter would collect garbage at exit, which takes a fifth of a command's time
    return code


def main() -> int:
    return run_process(program(), commands.Program)


def program() -> commands.App:
    """Return `turnkeeper` with the commands of all installed surfaces."""
    return commands.App(_TURNKEEPER_HELP, surfaces.commands())


def home() -> Home:
    """Return the state directory. Raises InvalidInput unless the directory exists and only its owner can write it."""
    place = named_home()
    place.check()
    return place


def named_home() -> Home:
    """Return the state directory in `--home` or in the environment, even if it does not exist. Touches nothing."""
    return locate(_common.home, os.environ)


def home_places() -> list[Path]:
    """Return the home's path, which may not exist, and then the files that redirect to it, the last one first."""
    return places(_common.home, os.environ)


def when(at: datetime | None, zone: tzinfo | None = None, *, fine: bool = False, day: bool = False) -> str:
    """Format an instant with its zone for a table: in `zone` or else the machine's zone, or in UTC with `--utc`.

    Return an empty text for None. With `fine`, include milliseconds; with `day`, begin with the day of the week.
    """
    if at is None:
        return ""
    shown = shown_in(at, UTC if _common.utc else zone)
    fraction = f".{shown.microsecond // 1000:03}" if fine else ""
    week = f"{shown:%a }" if day else ""
    return f"{week}{shown:%Y-%m-%d %H:%M:%S}{fraction}{'Z' if _common.utc else f'{shown: %Z}'}"


def when_short(at: datetime | None) -> str:
    """Format an instant for a narrow table: to the minute with its zone; in another year, the date. Empty for None."""
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
    """Return True if the command line asks for data and errors only (`-q`)."""
    return _common.quiet


def for_people(text: str) -> str:
    """Return the text with its instants in the form for people, but do not change options of a command."""
    return _ISO.sub(lambda found: when(parse_rfc3339(found[0]), day=True), text)


def say(text: str, indent: int = 0) -> None:
    """Print sentences. On a terminal, break lines between words but never in a time, and indent continuation lines."""
    _write(_broken(plain(text), indent))


def _broken(text: str, indent: int, file: Any = None) -> str:
    """Return the text with line breaks for the terminal, but none within a time or a command."""
    width = console(file).width if (file or sys.stdout).isatty() else 0
    if width <= 2 * indent or all(_cells(line) <= width for line in text.split("\n")):
        return text
    whole = _WHOLE.sub(lambda found: found[0].replace(" ", _JOINT), text)
    wrap = import_module("textwrap").TextWrapper(
        width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    )
    return "\n".join("\n".join(wrap.wrap(line)) or line for line in whole.split("\n")).replace(_JOINT, " ")


def time_given(text: str, *, past: bool = False) -> str:
    """Return a time from the command line in ISO form. Every command parses times with this function."""
    return written_time(text, SystemClock().now().astimezone(), past=past)


def _check_text(argv: Sequence[str]) -> None:
    """Refuse arguments that a message, a file or a terminal cannot contain. Raises InvalidInput."""
    for item in argv:
        if any("\ud800" <= letter <= "\udfff" for letter in item):
            raise errors.InvalidInput(f"{item[:60]!a} is not UTF-8", where="command line")


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
        raise errors.InvalidInput("needs a directory", where="--home")
    return str(value)


def _declare_common(app: commands.App) -> None:
    """Declare the common flags in the program's help. They are removed from the command line before it is parsed."""
    documented = app.registered_callback.callback if app.registered_callback else None

    def common(
        home: Annotated[Path | None, typer.Option(metavar="DIR", help=_HOME_HELP)] = None,
        utc: Annotated[bool, typer.Option(help="Show times in UTC.")] = False,
        no_color: Annotated[bool, typer.Option(help="Print plain text, as with $NO_COLOR.")] = False,
        quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print only data and errors.")] = False,
        json: Annotated[bool, typer.Option(help="As -o json, for commands that have -o.")] = False,
        version: Annotated[
            bool, typer.Option(help="Print the version.", is_eager=True, callback=_show_version)
        ] = False,
    ) -> None:
        del home, utc, no_color, quiet, json, version

    common.__doc__ = documented.__doc__ if documented else app.info.help
    app.callback(context_settings=commands.HELP)(common)


def _show_version(asked: bool) -> None:
    if asked:
        _write(f"turnkeeper {import_module('turnkeeper.config.build').build()}")
        raise Exit(0)


class Output(StrEnum):
    """Formats of a command's printed data."""

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
        help="Output format: table or wide, for people; json, jsonl or name, for scripts.",
    ),
]
LimitOption = Annotated[int, typer.Option("-n", "--limit", min=1, max=2**31 - 1, help="Show at most this many rows.")]
CursorOption = Annotated[
    str, typer.Option("--cursor", metavar="CURSOR", help="Show the next page: the cursor of the previous page.")
]
_AGAIN = "Refresh every two seconds."
StatusOption = Annotated[str, typer.Option("--status", help="Show only rows with this status; finished rows too.")]


def watched(command: Callable[..., None], also: Sequence[str] = ()) -> Callable[..., None]:
    """Add the option `--watch`, also under the names in `also`, to a command that prints a list."""

    @functools.wraps(command)
    def again(*, watch: bool = False, **options: Any) -> None:
        show_again(lambda _now: command(**options), watch=watch)

    option = Annotated[bool, typer.Option("-w", "--watch", *also, help=_AGAIN)]
    made: Callable[..., None] = declared(again, command, {"watch": (option, False)})
    return made


def declared(made: Any, command: Callable[..., Any], options: Mapping[str, tuple[Any, Any]]) -> Any:
    """Give a function the signature of a command for Typer, with `options` in place of the command's `**more`.

    Args:
        options: the annotation and the default, by name.
    """
    named = inspect.Parameter.KEYWORD_ONLY
    own = [one for one in inspect.signature(command).parameters.values() if one.kind is not one.VAR_KEYWORD]
    more = [inspect.Parameter(name, named, annotation=kind, default=given) for name, (kind, given) in options.items()]
    parameters = [*(one.replace(kind=named) for one in own), *more]
    made.__signature__ = inspect.Signature(parameters)
    made.__annotations__ = {one.name: one.annotation for one in parameters}
    return made


def show_again(show: Callable[[datetime], None], *, watch: bool, every_s: float = _REFRESH_S) -> None:
    """Call `show` with the current time. With `watch`, call it again every few seconds until the user interrupts.

    If a daemon does not answer for a moment, continue.
    """
    clock = SystemClock()
    if not watch:
        show(clock.now())
    while watch:
        try:
            show(clock.now())
        except Exit:
            pass  # the exit code matters only without --watch
        except (errors.Unreachable, errors.Conflict) as away:  # Conflict: another process has just opened the store
            note(str(away))
        sys.stdout.flush()
        clock.block(every_s)
        console().clear()


Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        wide: shown only with `-o wide`.
        right: aligned right, for numbers.
        rank: the order in which a narrow terminal omits columns, highest rank first.
        short: the value that is shown if the terminal has no room for the columns of rank 0 and 1.
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
    """Print a list as a JSON array, JSON lines, names, or a table with its footer on stderr.

    `in_words` formats a row as several lines, for a table that would be too wide.
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
    """Print a page of a list. `page` is an answer, or a result of `page_of`, with `total` and `next_cursor`.

    A note below the page gives the total number of rows and the next cursor, even with JSON. `show_rows` takes `more`.
    """
    names = ("total", "next_cursor")
    total, cursor = (page[name] if isinstance(page, Mapping) else getattr(page, name) for name in names)
    left = f"{total} in all, of which {len(rows)} are shown; the next: --cursor {cursor}"
    rest = [left] if cursor else []
    show_rows(rows, columns, output, name_key=name_key, footer="; ".join(filter(None, [footer, *rest])), **more)
    if rest and output in {Output.JSON, Output.JSONL, Output.NAME}:
        note(left)


def _show_table(rows: Sequence[Row], columns: Sequence[Column], *, fit: bool) -> None:
    """Print a table. With `fit`, cut it to the terminal; without, print a table that is too wide as lines of values."""
    width = console().width if sys.stdout.isatty() else None
    lines, hidden = _grid(rows, columns).lines(width if fit else None)
    if any(column.header in hidden and column.rank <= _NEEDED for column in columns):
        lines, hidden = _grid(rows, columns, short=True).lines(width)
    head, *rest = lines
    if width and not fit and max(map(_cells, [head, *rest])) > width:
        for at, row in enumerate(rows):
            values = [(column.header.lower(), column.value(row)) for column in columns]
            _print_headed("", "") if at else None
            show_record(row, Output.TABLE, name_key="", lines=[one for one in values if one[1] not in {"", "-"}])
        return
    _print_headed(head, "")
    for line in rest:
        _write(line)
    if hidden:
        note(f"hidden columns: {', '.join(hidden)}; to show them: -o wide")


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
    """Print one record as JSON, as its name, or as aligned `key: value` lines."""
    if output in {Output.JSON, Output.JSONL}:
        _write(as_json(record, indent=2 if output is Output.JSON else None))
    elif output is Output.NAME:
        _write(plain(str(record[name_key])))
    else:
        width = max((len(key) for key, _ in lines), default=0) + 1
        for key, value in lines:
            head = f"{key + ':':<{width}} "
            body = plain(value).replace("\n", "\n" + " " * len(head))
            if "turnkeeper " not in body:  # keep a command on one line, so that it can be copied
                body = _broken(head + body, len(head))[len(head) :]
            elif sys.stdout.isatty() and _cells(head + body.partition("\n")[0]) > console().width:
                body = "\n  " + plain(value).replace("\n", "\n  ")
            _print_headed(head, body)


def console(file: Any = None) -> Any:
    """Return Rich's console for stdout or a file. The console obeys NO_COLOR. On a pipe, it is as wide as its data.

    Rich is imported only here, because output to a pipe usually needs only `print`.
    """
    file = file or sys.stdout
    width = None if file.isatty() else 10_000
    return import_module("rich.console").Console(file=file, highlight=False, markup=False, emoji=False, width=width)


def _print_headed(head: str, text: str, style: str = "bold", file: Any = None) -> None:
    """Print a text after its heading, which is styled on a terminal."""
    file = file or sys.stdout
    if file.isatty() or not _STYLED.isdisjoint(os.environ):
        both = import_module("rich.text").Text.assemble((head, style), text)
        console(file).print(both, soft_wrap=True)
    else:
        print((head + text).expandtabs(8), file=file)


def note(text: str) -> None:
    """Print a message for the user on stderr, except with `-q`."""
    if _common.quiet:
        return
    sys.stdout.flush()
    print(_broken(plain(text), 0, sys.stderr), file=sys.stderr)  # noqa: T201


def complain(line: str, detail: str = "") -> None:
    """Print an error: one line, then the detail (a caret under the invalid field) if there is one."""
    head, said = "error: ", _broken("error: " + plain(line).replace("\n", " "), 0, sys.stderr)
    _print_headed(head, said.removeprefix(head), "bold red", sys.stderr)
    if detail:
        _print_headed("", plain(detail), file=sys.stderr)


def status(message: str) -> AbstractContextManager[object]:
    """Show a spinner on stderr while a block runs, if stderr is a terminal."""
    if not sys.stderr.isatty():
        return nullcontext()
    spinner: AbstractContextManager[object] = import_module("rich.console").Console(file=sys.stderr).status(message)
    return spinner


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The cells of a table with their headings.

    Attributes:
        cells: rows of one-line texts, one per column.
        ranks: the rank of each column; columns with the highest rank are omitted first; by default all are equal.
        narrowest: the smallest width to which cells are cut.
    """

    headers: Sequence[str]
    cells: Sequence[Sequence[str]]
    right: Sequence[bool]
    ranks: Sequence[int] = ()
    narrowest: int = _NARROWEST

    def lines(self, width: int | None = None) -> tuple[Iterator[str], Sequence[str]]:
        """Return the lines, with the headings first, and the headings of the columns that do not fit into `width`.

        If that is enough, cut the wide columns, the widest one most. Otherwise also omit columns: the highest rank
        first, and the last one first within a rank. The first column always remains. Without a width, no cell is cut.
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
    """Return the widths. Cut the widest columns to a common width, so that all columns fit."""
    cap = max(widths)
    while cap > narrowest and _total([min(one, cap) for one in widths]) > width:
        cap -= 1
    return [min(one, cap) for one in widths]


def _cells(text: str) -> int:
    return len(text) if text.isascii() and text.isprintable() else int(import_module("rich.cells").cell_len(text))


def _placed(text: str, width: int, right: bool) -> str:
    size = _cells(text)
    if size > width:
        return str(import_module("rich.cells").set_cell_size(text, max(0, width - 1))) + _CUT
    return " " * (width - size) + text if right else text + " " * (width - size)


@contextmanager
def bar(what: str, total: int, *, clock: Clock | None = None, out: Any = None) -> Iterator[Callable[[int], None]]:
    """Yield a function that counts finished work. After a second, show a progress bar if stderr is a terminal.

    Args:
        what: one or two words before the bar.
        clock: the default is the machine's clock; tests pass a different one.
        out: the default is stderr; tests pass a different one.
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
