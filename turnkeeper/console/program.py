"""Running a command-line program: common flags anywhere on the line, one-line errors, exit codes."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.exceptions import Abort, Exit, TyperException

from turnkeeper.config.home import Home, locate
from turnkeeper.console import render
from turnkeeper.errors import EXIT_INTERRUPTED, EXIT_USAGE, InvalidInput, TurnkeeperError

_HOME_HELP = "The state directory; else $TURNKEEPER_HOME, else ~/.turnkeeper."


@dataclass
class _Common:
    home: Path | None = None
    utc: bool = False


_common = _Common()


def run(app: typer.Typer, argv: Sequence[str]) -> int:
    """Run `app` on `argv` (without the program's name) and return its exit code.

    `--home DIR`, `--utc` and `--no-color` are taken from anywhere before a `--`. An error that a person is meant to
    read becomes one line on stderr and the exit code of its class.
    """
    try:
        _check_text(argv)
        rest = _take_common(argv)
        _declare_common(app)
        result = app(args=rest, standalone_mode=False, prog_name=Path(sys.argv[0]).name)
    except TurnkeeperError as error:
        render.complain(str(error), str(getattr(error, "caret", "")))
        return error.exit_code
    except Exit as stop:
        return stop.exit_code
    except TyperException as error:
        said = error.format_message().replace("Value error, ", "").rstrip(".")
        render.complain(f"{said}{_see_help(error)}")
        return EXIT_USAGE
    except (KeyboardInterrupt, Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has left: nothing more to say
        return 0
    return result if isinstance(result, int) else 0


def home() -> Home:
    """Return the state directory that `--home` or the environment names. Touches nothing."""
    return locate(_common.home, os.environ)


def when(at: datetime | None) -> str:
    """Write an instant for a table: local time, or UTC with `--utc`; empty for None."""
    if at is None:
        return ""
    shown = at.astimezone(UTC) if _common.utc else at.astimezone()
    return shown.strftime("%Y-%m-%d %H:%M:%S") + ("Z" if _common.utc else "")


def _check_text(argv: Sequence[str]) -> None:
    """Refuse what no message, file or terminal could hold. Raises InvalidInput."""
    for item in argv:
        if any("\ud800" <= letter <= "\udfff" for letter in item):
            raise InvalidInput(f"{item[:60]!a} is not UTF-8", where="command line")


def _take_common(argv: Sequence[str]) -> list[str]:
    _common.home, _common.utc = None, False
    rest: list[str] = []
    items = iter(argv)
    for item in items:
        if item == "--":
            return [*rest, item, *items]
        if item == "--home":
            _common.home = Path(_following(items))
        elif item.startswith("--home="):
            _common.home = Path(item.removeprefix("--home="))
        elif item == "--utc":
            _common.utc = True
        elif item == "--no-color":
            os.environ["NO_COLOR"] = "1"
        else:
            rest.append(item)
    return rest


def _following(items: Any) -> str:
    value = next(items, None)
    if value is None:
        raise InvalidInput("wants a directory", where="--home")
    return str(value)


def _declare_common(app: typer.Typer) -> None:
    """Add the common flags to the program's own help; they are taken off the line before it is parsed."""
    documented = app.registered_callback.callback if app.registered_callback else None

    def common(
        home: Annotated[Path | None, typer.Option("--home", metavar="DIR", help=_HOME_HELP)] = None,
        utc: Annotated[bool, typer.Option("--utc", help="Show times in UTC.")] = False,
        no_color: Annotated[bool, typer.Option("--no-color", help="Plain text; so does $NO_COLOR.")] = False,
    ) -> None:
        del home, utc, no_color

    common.__doc__ = documented.__doc__ if documented else app.info.help
    app.callback(no_args_is_help=True)(common)


def _see_help(error: TyperException) -> str:
    context = getattr(error, "ctx", None)
    return f"; see: {context.command_path} --help" if context is not None else ""
