"""Commands of the programs: their groups in help, their import at their use, and suggestions for an unknown word.

Tables of :class:`Later` list a program's commands, with the text for help. The modules of a command are imported when
the command is used. Help imports none of them. Surfaces add commands to `turnkeeper` (`turnkeeper/config/surfaces.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypeVar

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from turnkeeper.config.surfaces import Later, Panel, imported
from turnkeeper.errors import meant

F = TypeVar("F", bound=Callable[..., Any])
HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
_MOST_MEANT = 3
_MOST_NAMED = 8
_MOST_DIGITS = 9  # most digits of a number that is parsed without Pydantic
# The commands that most people need, and the text for a user who names no command.
FIRST = {
    "init": "make a home for your agent; it asks for what is needed",
    "up": "start everything",
    "task create": "give the agent work on a schedule",
    "send CHANNEL TEXT": "write to the agent; /loop 15m TEXT repeats it",
    "triage": "decide what waits for you",
    "status": "see what runs and what waits",
}


_ALSO = {"remove": "delete", "erase": "delete", "enable": "resume", "unpause": "resume"}  # hidden aliases
_WORDS = {"int": "N", "float": "N", "Path": "PATH"}  # placeholders in help, by type


class _Parameter:
    """A copy of one of Typer's parameters, with help in the common form: without types, bounds and braces."""

    def __init__(self, made: Any) -> None:
        vars(self).update(vars(made), min=None, max=None)

    def process_value(self, context: Any, value: Any) -> Any:
        """Return the value that Typer would return. A plain value does not need Pydantic.

        Typer converts every value with Pydantic, even the value of an option that was not given. To import Pydantic
        takes half of the start-up time of a command.
        """
        one: Any = self
        convert: Any = super().process_value  # type: ignore[misc]  # Typer's class has it
        kind, multiple = one.type_descriptor.annotation, one.multiple or one.nargs == -1
        if value is None and not one.required:
            absent = () if multiple else None
            return one.callback(context, one, absent) if one.callback else absent
        asked = one.type_descriptor.parameter_info
        if one.callback or multiple or asked.parser:
            return convert(context, value)
        if isinstance(kind, type) and issubclass(kind, StrEnum) and value in list(kind):
            return kind(value)
        text = str(value)
        if kind is int and text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS:
            low, high = (int(text) if bound is None else bound for bound in (asked.min, asked.max))
            return int(text) if low <= int(text) <= high else convert(context, value)
        return value if kind is str and type(value) is str else convert(context, value)


class _Argument(_Parameter, TyperArgument):
    def __init__(self, made: Any) -> None:
        super().__init__(made)
        self.metavar = (self.metavar or self.name.rstrip("_").upper()).strip("[]")

    def get_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ARG002  Typer's signature
        usage = self.metavar if self.required else f"[{self.metavar}]"
        return [f"{usage}..." if self.nargs != 1 else f"{usage}"]

    def display_type_rich(self, ctx: Any) -> None:
        """Return None, because the name of the parameter is clear enough."""


class _Option(_Parameter, TyperOption):
    def __init__(self, made: Any) -> None:
        super().__init__(made)
        kind = self.type_descriptor.annotation
        if not self.type_descriptor.parameter_info.param_decls:  # Typer adds --no-NAME to a flag
            self.secondary_opts = []
        if self.metavar is None:
            choices = "|".join(kind) if isinstance(kind, type) and issubclass(kind, StrEnum) else ""
            self.metavar = choices or _WORDS.get(getattr(kind, "__name__", ""), "TEXT")


def _own(made: Sequence[Any] | None) -> list[Any]:
    return [_Argument(one) if isinstance(one, TyperArgument) else _Option(one) for one in made or ()]


class _Own:
    """A mix-in that replaces a command's parameters by our copies, and also the option that shows the help."""

    _help: Any = None

    def __init__(self, *named: Any, params: Sequence[Any] | None = None, **how: Any) -> None:
        super().__init__(*named, params=_own(params), **how)  # type: ignore[call-arg]  # Typer's class takes it

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option that shows the help: always the same one, because Typer looks up its place in the list."""
        if self._help is None and (made := super().get_help_option(ctx)):  # type: ignore[misc]  # Typer's class has it
            self._help = _Option(made)
        return self._help


class Command(_Own, TyperCommand):
    """A command. If its function has `panels`, help lists the options under these headings.

    `panels` maps each heading to the names of its options, in order. All other options are under the last heading.
    """

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: Mapping[str, str] = getattr(self.callback, "panels", {})
        if not panels:
            super().format_options(ctx, formatter)
            return
        headings = {name: heading for heading, names in panels.items() for name in names.split()}
        rows: dict[str, list[tuple[str, str]]] = {heading: [] for heading in ("Arguments", *panels)}
        for one in self.get_params(ctx):
            is_argument = one.param_type_name == "argument"
            heading = "Arguments" if is_argument else headings.get(one.name.rstrip("_"), list(panels)[-1])
            rows[heading] += filter(None, [one.get_help_record(ctx)])
        for heading, found in rows.items():
            if found:
                with formatter.section(heading):
                    formatter.write_dl(found)


class Group(_Own, TyperGroup):
    """A group of commands. Without a command it prints its help. Commands have plurals and aliases."""

    later: Mapping[str, Later] = {}

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  Typer's signature
        return list({**self.later, **self.commands})

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002  Typer's signature
        """Return a command by its name, and import it if necessary. Return None if there is none."""
        forms = cmd_name, f"{cmd_name}s", cmd_name.removesuffix("s"), _ALSO.get(cmd_name, "")
        name = next((name for name in forms if name in self.commands or name in self.later), None)
        if name is not None and name not in self.commands:
            self.commands[name] = load(name, self.later[name])
        return None if name is None else self.commands[name]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands before the options, because most people look for a command."""
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
        if name in self.later:
            return self.later[name].panel, self.later[name].summary
        return None, self.commands[name].get_short_help_str(width)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line; without a command, print the help."""
        if not args and not ctx.resilient_parsing:
            typer.echo(self.said_alone(ctx))
            ctx.exit()
        return super().parse_args(ctx, args)

    def said_alone(self, ctx: Any) -> str:
        """Return the text for a command line that ends with this group."""
        return str(ctx.get_help())

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the user named. Raises UsageError with suggestions."""
        if self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0][:40]!r}. {self._meant(ctx, args[0])}".rstrip(". "))
        return super().resolve_command(ctx, args)

    def _meant(self, ctx: Any, word: str) -> str:
        """Suggest a command with a similar name, or one with this name in a group."""
        names = self._visible(ctx)
        groups = [(name, self.get_command(ctx, name)) for name in names]
        found = [f"{name} {word}" for name, one in groups if isinstance(one, Group) and word in one.list_commands(ctx)]
        if found:
            return f"Did you mean {' or '.join(found[:_MOST_MEANT])}?"
        hint = meant({"undo": "restore"}.get(word, word), names)
        return hint[0].upper() + hint[1:] if "did you mean" in hint or len(names) <= _MOST_NAMED else ""


class Program(Group):
    """The program for people, to which surfaces add their commands."""

    def said_alone(self, ctx: Any) -> str:
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


class App(typer.Typer):
    """A group of commands, or a program.

    Attributes:
        later: commands that are imported when they are used, by name, in the order of the help.
    """

    def __init__(self, said: str, later: Mapping[str, Later] = MappingProxyType({})) -> None:
        super().__init__(help=said, cls=Group, rich_markup_mode=None, pretty_exceptions_enable=False)
        self.later = later

    def command(self, name: str | None = None, **how: Any) -> Callable[[F], F]:
        return super().command(name, cls=Command, **how)


def build(app: App, cls: type[Group] = Group) -> Group:
    """Convert an application to a tree of commands. Each group is a :class:`Group`, and the root is a `cls`."""
    app.info.cls = cls
    built: Any = typer.main.get_command(app)
    built.params, built.later = _own(built.params), app.later
    return built  # type: ignore[no-any-return]


def load(name: str, later: Later) -> Any:
    """Import a command, build it under its name and return it."""
    found, holder = imported(later.target), App("")
    if isinstance(found, App):
        holder.add_typer(found, name=name, hidden=later.panel is None)
    else:
        holder.command(name, hidden=later.panel is None)(found)
    command: Any = typer.main.get_group(holder).commands[name]
    command.later = getattr(found, "later", {})
    return command
