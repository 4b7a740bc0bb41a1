"""Commands of the programs: their groups in help, their import on use, and suggestions for an unknown word.

Tables of :class:`Later` list a program's commands, with the text for help. A command's modules are imported when the
command is used; help imports none of them. Surfaces add commands to `turnkeeper` (`turnkeeper/config/surfaces.py`).
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from turnkeeper.config.surfaces import Later, Panel, imported
from turnkeeper.errors import meant

HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
_MOST_MEANT = 3
_MOST_NAMED = 8
_MOST_DIGITS = 9  # of a number that is parsed without Pydantic
# The commands that most people need, with the text shown to a user who names no command.
FIRST = {
    "init": "make a home for your agent; it asks for what is needed",
    "up": "start everything",
    "task create": "give the agent work on a schedule",
    "send CHANNEL TEXT": "write to the agent; /loop 15m TEXT repeats it",
    "triage": "decide what waits for you",
    "status": "see what runs and what waits",
}


_WORDS = {"int": "N", "float": "N", "Path": "PATH"}  # placeholders in help, by type


def load(name: str, later: Later) -> Any:
    """Import a command, build it under its name and return it."""
    found = imported(later.target)
    holder = typer.Typer(add_completion=False)
    holder.callback()(lambda: None)  # a callback makes it a group with one command
    looks: Any = {"rich_help_panel": later.panel, "hidden": later.panel is None}
    if isinstance(found, typer.Typer):
        holder.add_typer(found, name=name, **looks)
    else:
        holder.command(name, **looks)(found)
    command: Any = build(holder).commands[name]
    if isinstance(found, App):
        command.later = found.later
    return command


class App(typer.Typer):
    """An application that imports its commands when they are used.

    Attributes:
        later: the commands by name, in the order of the help.
    """

    def __init__(self, said: str, later: Mapping[str, Later]) -> None:
        super().__init__(help=said, rich_markup_mode=None, pretty_exceptions_enable=False)
        self.later = later


class Group(TyperGroup):
    """A group of commands. Without a command it prints its help. A command's name may be singular or plural."""

    later: Mapping[str, Later] = {}

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  Typer's signature
        return list({**self.later, **self.commands})

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002  Typer's signature
        """Return a command by its name, imported on demand; None if there is none."""
        name = next((name for name in _forms(cmd_name) if name in self.commands or name in self.later), None)
        if name is not None and name not in self.commands:
            self.commands[name] = load(name, self.later[name])
        return None if name is None else self.commands[name]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands before the options: most people look for a command."""
        self.format_commands(ctx, formatter)
        TyperCommand.format_options(self, ctx, formatter)  # type: ignore[arg-type]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        shown = [(name, self._look(name, formatter.width * 3)) for name in self._visible(ctx)]
        for panel in (*Panel, None):
            if rows := [(name, summary) for name, (under, summary) in shown if under == panel]:
                with formatter.section(panel or "Commands"):
                    formatter.write_dl(rows)

    def _visible(self, ctx: Any) -> list[str]:
        names = self.list_commands(ctx)
        return [n for n in names if (self.later[n].panel if n in self.later else not self.commands[n].hidden)]

    def _look(self, name: str, width: int) -> tuple[Panel | None, str]:
        """Return a command's heading in help, and its summary."""
        if name in self.later:
            return self.later[name].panel, self.later[name].summary
        return _panel_of(self.commands[name]), self.commands[name].get_short_help_str(width)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line; without a command, print the help."""
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the requested command. Raises UsageError with suggestions."""
        if self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0][:40]!r}. {self._meant(ctx, args[0])}".rstrip(". "))
        return super().resolve_command(ctx, args)

    def _meant(self, ctx: Any, word: str) -> str:
        """Suggest a command with a similar name, or a command with this name in a group."""
        names = self._visible(ctx)
        groups = [(name, self.get_command(ctx, name)) for name in names]
        found = [f"{name} {word}" for name, one in groups if isinstance(one, Group) and word in one.list_commands(ctx)]
        if found:
            return f"Did you mean {' or '.join(found[:_MOST_MEANT])}?"
        hint = meant(word, names)
        return hint[0].upper() + hint[1:] if "did you mean" in hint or len(names) <= _MOST_NAMED else ""


class Program(Group):
    """The program for people, to which the surfaces add their commands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line; without a command, print a one-screen overview."""
        if not args and not ctx.resilient_parsing:
            typer.echo(self._overview(ctx))
            ctx.exit()
        return super().parse_args(ctx, args)

    def _overview(self, ctx: Any) -> str:
        """Return the commands that most people need, and the names of all commands by purpose."""
        out = ctx.make_formatter()
        out.write_usage(ctx.command_path, "COMMAND [ARGS]...")
        with out.section("Begin with"):
            out.write_dl([(words, said) for words, said in FIRST.items() if words.split()[0] in self.later])
        names = self._visible(ctx)
        panels = {panel: [name for name in names if self.later[name].panel == panel] for panel in Panel}
        with out.section("All commands"):
            out.write_dl([(panel, " ".join(found)) for panel, found in panels.items() if found])
        out.write_paragraph()
        out.write_text(f"What each does: {ctx.command_path} -h. How to use one: {ctx.command_path} COMMAND -h")
        return str(out.getvalue().rstrip("\n"))


def _panel_of(command: Any) -> Panel | None:
    given = command.rich_help_panel
    return given if isinstance(given, Panel) else None  # Typer uses a placeholder of its own if none is given


def _forms(name: str) -> tuple[str, str, str]:
    """Return the names that a word may stand for: the word itself, its plural, and its singular."""
    return name, f"{name}s", name.removesuffix("s")


def build(app: typer.Typer, cls: type[Group] = Group) -> Group:
    """Convert an application to a tree of commands: each group is a :class:`Group`, and the root is a `cls`."""
    _shape(app, cls)
    built: Any = typer.main.get_command(app)
    group = built if isinstance(built, Group) else cls(commands={built.name: built})
    group.later = app.later if isinstance(app, App) else group.later
    _read_plainly(group)
    return group


def _read_plainly(command: Any) -> None:
    """Parse the plain values of a command and its subcommands without Pydantic.

    Typer converts every value with Pydantic, even for an option that was not given. Importing Pydantic takes half of
    the start-up time of a command.
    """
    command.get_params = partial(_parameters, command.get_params)
    if panels := getattr(command.callback, "panels", None):
        command.format_options = partial(_write_in_panels, command, panels)
    for one in getattr(command, "commands", {}).values():
        _read_plainly(one)


def _write_in_panels(command: Any, panels: Mapping[str, str], context: Any, formatter: Any) -> None:
    """Write a command's options under headings; `panels` maps each heading to its options, in order.

    Options that are not in `panels` go under the last heading.
    """
    headings = {name: heading for heading, names in panels.items() for name in names.split()}
    rows: dict[str, list[tuple[str, str]]] = {heading: [] for heading in ("Arguments", *panels)}
    for one in command.get_params(context):
        is_argument = one.param_type_name == "argument"
        heading = "Arguments" if is_argument else headings.get(one.name.rstrip("_"), list(panels)[-1])
        rows[heading] += filter(None, [one.get_help_record(context)])
    for heading, found in rows.items():
        if found:
            with formatter.section(heading):
                formatter.write_dl(found)


def _parameters(get: Callable[[Any], list[Any]], context: Any) -> list[Any]:
    found = get(context)
    for one in found:
        if "process_value" not in vars(one):
            one.process_value = partial(_value_of, one, one.process_value)
            _write_usually(one)
    return found


def _write_usually(parameter: Any) -> None:
    """Make help write a parameter as most programs do: `NAME` and `[NAME]`, `--limit N`, without types and bounds."""
    kind, looks = parameter.type_descriptor.annotation, dict[str, Any](_get_number_range_help_str=lambda: None)
    if parameter.param_type_name == "argument":
        name = (parameter.metavar or parameter.name.rstrip("_").upper()).strip("[]")
        usage = (name if parameter.required else f"[{name}]") + ("..." if parameter.nargs != 1 else "")
        looks |= {"metavar": name, "display_type_rich": lambda ctx: None, "_usage_display_name": lambda: usage}  # noqa: ARG005
    elif parameter.metavar is None:
        choices = "|".join(kind) if isinstance(kind, type) and issubclass(kind, StrEnum) else ""
        looks["metavar"] = choices or _WORDS.get(getattr(kind, "__name__", ""), "TEXT")
    vars(parameter).update(looks)


def _value_of(parameter: Any, convert: Callable[[Any, Any], Any], context: Any, value: Any) -> Any:
    """Return a parameter's value as `convert` would; a plain value needs no conversion, which saves time."""
    kind, multiple = parameter.type_descriptor.annotation, parameter.multiple or parameter.nargs == -1
    if value is None and not parameter.required:
        absent = () if multiple else None
        return parameter.callback(context, parameter, absent) if parameter.callback else absent
    asked = parameter.type_descriptor.parameter_info
    if parameter.callback or multiple or asked.parser:
        return convert(context, value)
    if isinstance(kind, type) and issubclass(kind, StrEnum) and value in list(kind):
        return kind(value)
    text = str(value)
    if kind is int and text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS:
        low, high = (int(text) if bound is None else bound for bound in (asked.min, asked.max))
        return int(text) if low <= int(text) <= high else convert(context, value)
    return value if kind is str and type(value) is str else convert(context, value)


def _shape(app: typer.Typer, cls: type[Group]) -> None:
    app.info.cls, app.rich_markup_mode = cls, None
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _shape(group.typer_instance, Group)
