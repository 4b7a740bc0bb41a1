"""The commands of the programs: how help groups them, which packages add some, and what an unknown word may mean.

A package adds commands to `turnkeeper` by entry points of the group `turnkeeper.commands`. Each has the name of a
command, and names a Typer that has it. The package is imported when the command is used or listed, and not before.
"""

import importlib
from collections.abc import Iterator
from enum import StrEnum
from functools import cached_property
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from turnkeeper.errors import meant

ENTRY_POINTS = "turnkeeper.commands"
HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
_MOST_MEANT = 3
_MOST_NAMED = 8


class Panel(StrEnum):
    """What people want to do, in the order in which help lists it."""

    START = "Start and stop"
    WORK = "Give an agent work"
    FIRE = "Fire, pause and resume"
    TALK = "Talk and decide"
    LOOK = "See what happens and why"
    KNOW = "What an agent knows and may do"
    HOME = "Look after the home"


class Group(TyperGroup):
    """A group of commands. Without a command it prints its help; a command's name may be singular or plural."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  Typer's signature
        """Return the names of the commands."""
        return [*self.commands]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002  Typer's signature
        """Return a command by its name; None if there is none."""
        return next((self.commands[name] for name in _forms(cmd_name) if name in self.commands), None)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, then the options: most people look for a command."""
        self.format_commands(ctx, formatter)
        TyperCommand.format_options(self, ctx, formatter)  # type: ignore[arg-type]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands under what they are for."""
        shown = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        shown = [(name, command) for name, command in shown if not command.hidden]
        for panel in (*Panel, None):
            rows = [
                (name, command.get_short_help_str(formatter.width * 3))
                for name, command in shown
                if _panel_of(command) == panel
            ]
            if rows:
                with formatter.section(panel or "Commands"):
                    formatter.write_dl(rows)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line; without a command, print the help."""
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that was asked for. Raises UsageError with what may be meant."""
        if self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0][:40]!r}. {self._meant(ctx, args[0])}".rstrip(". "))
        return super().resolve_command(ctx, args)

    def _meant(self, ctx: Any, word: str) -> str:
        """Return what may be meant: a command that is written nearly so, or a command of this name in a group."""
        names = [name for name in self.list_commands(ctx) if not self.get_command(ctx, name).hidden]
        found = [f"{name} {word}" for name in names if word in getattr(self.get_command(ctx, name), "commands", ())]
        if found:
            return f"Did you mean {' or '.join(found[:_MOST_MEANT])}?"
        hint = meant(word, names)
        return hint[0].upper() + hint[1:] if "did you mean" in hint or len(names) <= _MOST_NAMED else ""


class Program(Group):
    """The program for people: packages add its commands."""

    @cached_property
    def _added(self) -> dict[str, Any]:
        # Imported only now: the other programs do without.
        entry_points: Any = importlib.import_module("importlib.metadata").distribution("turnkeeper").entry_points
        return {point.name: point for point in entry_points.select(group=ENTRY_POINTS)}

    def _load(self, name: str) -> None:
        """Add the commands of the package that adds this one, in the package's order."""
        added = build(self._added[name].load()).commands
        names = (known for known in added if known in self._added or added[known].hidden)
        self.commands.update({known: added[known] for known in names})

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, loading the packages that add them."""
        for name in self._added:
            if name not in self.commands:
                self._load(name)
        return super().list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by its name, loading the package that adds it."""
        own = super().get_command(ctx, cmd_name)
        added = None if own else next((name for name in _forms(cmd_name) if name in self._added), None)
        if added is None:
            return own
        self._load(added)
        return self.commands[added]


def _panel_of(command: Any) -> Panel | None:
    given = command.rich_help_panel
    return given if isinstance(given, Panel) else None  # Typer has a placeholder of its own where none is given


def _forms(name: str) -> tuple[str, str, str]:
    """Return the names that a word may stand for: itself, its plural, its singular."""
    return name, f"{name}s", name.removesuffix("s")


def build(app: typer.Typer, cls: type[Group] = Group) -> Group:
    """Return an application as a tree of commands, each group of which is a :class:`Group`; the root is a `cls`."""
    _shape(app, cls)
    built: Any = typer.main.get_command(app)
    return built if isinstance(built, Group) else cls(commands={built.name: built})


def _shape(app: typer.Typer, cls: type[Group]) -> None:
    app.info.cls, app.rich_markup_mode = cls, None
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _shape(group.typer_instance, Group)


def every_command(program: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each command of a built program with the words that reach it, groups among them."""
    yield path, program
    if isinstance(program, Group):
        context = typer.Context(program, info_name=path[-1])
        for name in program.list_commands(context):
            yield from every_command(program.get_command(context, name), (*path, name))
