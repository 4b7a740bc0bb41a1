"""The page of commands and options."""

import re
from collections.abc import Iterator
from typing import Any

import typer

from tests.support.program import every_command
from turnkeeper import console
from turnkeeper.config.surfaces import Panel
from turnkeeper.console.commands import Group, Program, build

_PROGRAM = "turnkeeper"
_EXAMPLE = re.compile(r"^(Examples?): (.+)", re.DOTALL)


def program() -> Any:
    """Return the program for people, with its commands."""
    app = console.program()
    console._declare_common(app)
    return build(app, Program)


def commands() -> str:
    """Return the page."""
    built = program()
    visible = set(built._visible(typer.Context(built, info_name=_PROGRAM)))
    under = {name: built.later[name].panel for name in visible}
    lines = [
        "# Commands",
        "",
        f"This page lists every command of `{_PROGRAM}` with its arguments and options, under the headings of "
        f"`{_PROGRAM} -h`. `make reference` writes it from the program.",
        "",
        "Every command takes `--home DIR`, `--utc`, `--no-color`, `-q`, `--version` and `-h`, anywhere on the line. "
        "A command with the option `-o` also takes `--json`.",
    ]
    for panel in Panel:
        lines += ["", f"## {panel}"]
        for path, command in every_command(built, (_PROGRAM,)):
            if len(path) > 1 and under.get(path[1]) is panel and not getattr(command, "hidden", False):
                lines += ["", *_one(path, command)]
    return "\n".join(lines) + "\n"


def _one(path: tuple[str, ...], command: Any) -> Iterator[str]:
    context = typer.Context(command, info_name=" ".join(path))
    pieces = " ".join(piece for piece in command.collect_usage_pieces(context) if piece != "[OPTIONS]")
    yield f"### {' '.join(path[1:])}"
    yield ""
    yield f"`{' '.join(path)} {pieces}`".replace(" `", "`")
    for paragraph in (command.help or "").strip().split("\n\n"):
        text = " ".join(paragraph.split())
        yield ""
        example = _EXAMPLE.match(text)
        yield f"Example: `{example[2]}`" if example else _plain(text)
    if isinstance(command, Group):
        return
    records = [one.get_help_record(context) for one in command.get_params(context)]
    rows = [(name, said) for name, said in filter(None, records) if not name.endswith("--help")]
    if rows:
        yield ""
        yield "| argument or option | meaning |"
        yield "| --- | --- |"
        yield from (f"| `{_cell(name)}` | {_cell(_plain(said))} |" for name, said in rows)


def _plain(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", r"\*")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")
