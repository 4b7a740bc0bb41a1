"""Every command that a text of the programs or a document names exists, and one program reaches all of them."""

import ast
import difflib
import importlib
import io
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperOption

import agent_runtime.cli
import task_runner.cli
from tests.support.program import every_command
from turnkeeper import console
from turnkeeper.config.home import Home
from turnkeeper.console import commands
from turnkeeper.console.commands import Group, Panel, Program, build
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import TurnkeeperError
from turnkeeper.storage.keys import KeyFile

ROOT = Path(__file__).parent.parent
PACKAGES = ("turnkeeper", "task_runner", "agent_runtime")
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "reference").glob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
MENTION = re.compile(r"(?<![\w./@-])(turnkeeper|task-runner|agent-runtime)((?: (?!-)[a-z][a-z-]*)+)([^\n`]*)")
TYPED = re.compile(r"(?:`|\$ |[a-z]: )$")  # before a command that a person is to type
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
ENDS = re.compile(r" (?:&&|\|\|?|>) |;|, |\$\(|…|(?<=[a-z]): ")
COMMON = {"--home", "--utc", "--no-color", "--quiet", "--json", "--help", "--version"}
# What follows the name of a process in a sentence about that process.
SENTENCE = """
a add again alone already and answers are as asks at be call can could decides did died does ended finds for from goes has if in
into is its itself keeps makes may not of on once only or owns processes reads refuses restarted restarts runs settings starts
stopped stops stores takes that the then to up uses waits was were when which will with would writes
"""


def programs() -> dict[str, Any]:
    return {
        "turnkeeper": dressed(console.program(), Program),
        "task-runner": dressed(task_runner.cli.application()),
        "agent-runtime": dressed(agent_runtime.cli.app),
    }


def dressed(app: Any, cls: type[Group] = Group) -> Group:
    console._declare_common(app)
    return build(app, cls)


BUILT = programs()
COMMANDS = {path: command for name, program in BUILT.items() for path, command in every_command(program, (name,))}


@cache
def texts(path: Path) -> list[tuple[int, str]]:
    """Return what a file says: its strings with their lines, or each line of a page."""
    if path.suffix == ".md":
        return [*enumerate(path.read_text().replace("\\\n", " ").splitlines(), 1)]
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "X" for part in node.values)
            found.append((node.lineno, "".join(map(str, parts))))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append((node.lineno, node.value))
    return found


def mistakes(text: str) -> Iterator[str]:
    for found in MENTION.finditer(text):
        program, words, rest = found.groups()
        path, *left = (program,), *words.split()
        while left and isinstance(COMMANDS[path], Group):
            command = COMMANDS[path].get_command(None, left[0])
            if command is None:
                names = COMMANDS[path].list_commands(None)
                meant = TYPED.search(text[: found.start()]) or difflib.get_close_matches(left[0], names, cutoff=0.7)
                if len(path) > 1 or (meant and left[0] not in SENTENCE.split()):
                    yield " ".join((*path, left[0]))
                break
            path, left = (*path, command.name), left[1:]
        known = {option for param in COMMANDS[path].params for option in (*param.opts, *param.secondary_opts)} | COMMON
        if len(path) > 1 or words.split()[0] not in SENTENCE.split():
            yield from (
                f"{' '.join(path)} {option}"
                for option in OPTION.findall(ENDS.split(rest)[0])
                if option not in known and not isinstance(COMMANDS[path], Group)
            )


def test_every_command_that_a_text_names_exists() -> None:
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))] + PAGES
    found = [
        f"{file.relative_to(ROOT)}:{line}: {mistake}"
        for file in files
        for line, text in texts(file)
        for mistake in mistakes(" ".join(text.split()) if file.suffix == ".py" else text)
    ]
    assert found == []


# Commands that `turnkeeper` does not have, and what an agent in a terminal is told about its loop.
OF_THEIR_OWN = {"serve", "loop reschedule", "loop delete"}


def named_otherwise(text: str) -> Iterator[str]:
    """Yield the commands that a text names as task-runner and agent-runtime have them."""
    for program, words, _ in MENTION.findall(text):
        first, second = [*words.split(), "", ""][:2]
        command = COMMANDS[program,].get_command(None, first)
        inner = command.get_command(None, second) if second and isinstance(command, Group) else command
        if program != "turnkeeper" and inner and not OF_THEIR_OWN & {first, f"{first} {second}"}:
            yield f"{program} {first} {second}".strip()


def test_texts_name_the_commands_of_the_one_program_for_people() -> None:
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))] + PAGES
    found = [
        f"{file.relative_to(ROOT)}:{line}: {command}"
        for file in files
        for line, text in texts(file)
        for command in named_otherwise(" ".join(text.split()))
        if command.split()[1] not in SENTENCE.split()
    ]
    assert found == []
    assert list(named_otherwise("see: agent-runtime turns show X")) == ["agent-runtime turns show"]


def test_a_command_that_does_not_exist_is_found() -> None:
    assert list(mistakes("see: task-runner shwo digest")) == ["task-runner shwo"]
    assert list(mistakes("see: turnkeeper loop lst; then")) == ["turnkeeper loop lst"]
    assert list(mistakes("turnkeeper task list --al")) == ["turnkeeper task list --al"]
    assert list(mistakes("agent-runtime is not running; start it: turnkeeper up 2 --foreground")) == []


def outcome(*argv: str, program: str = "turnkeeper", capsys: Any) -> tuple[int, str, str]:
    apps = {"turnkeeper": console.program(), "agent-runtime": agent_runtime.cli.app}
    app = apps.get(program) or task_runner.cli.application()
    code = console.run(app, argv, Program if program == "turnkeeper" else Group)
    told = capsys.readouterr()
    return code, told.out, told.err


def shown(*, groups: bool) -> list[tuple[str, ...]]:
    paths = [path for path in COMMANDS if path[0] in {"turnkeeper", "task-runner", "agent-runtime"}]
    return [path for path in paths if isinstance(COMMANDS[path], Group) == groups and path[:2] != AGAIN]


AGAIN = ("turnkeeper", "interrupts")
UNDER_ANOTHER_NAME = {("turnkeeper", "quiet"), ("turnkeeper", "loop", "restore"), ("turnkeeper", "loop", "tick")}


@pytest.mark.parametrize("path", shown(groups=True), ids=" ".join)
def test_a_group_without_a_command_prints_its_help(path: tuple[str, ...], capsys: Any) -> None:
    bare = outcome(*path[1:], program=path[0], capsys=capsys)
    assert (bare[0], bare[1][:7], bare[2]) == (0, "Usage: ", "")
    assert path == ("turnkeeper",) or outcome(*path[1:], "-h", program=path[0], capsys=capsys) == bare


@pytest.mark.parametrize("path", [path for path in shown(groups=False) if path[0] == "turnkeeper"], ids=" ".join)
def test_the_help_of_a_command_is_printed_for_h_and_fits_the_screen(path: tuple[str, ...], capsys: Any) -> None:
    code, said, _ = outcome(*path[1:], "-h", program=path[0], capsys=capsys)
    example = " ".join(said.split()).partition("Example: ")[2]
    assert (code, " ".join(path) in example or path in UNDER_ANOTHER_NAME) == (0, True), example[:100]
    assert max(map(len, said.splitlines())) <= 80
    assert not re.search(r"<\w+>|<=x|x>=|\{\w+\}", said), "no name of a type of the program's"


def test_turnkeeper_reaches_every_command_of_the_other_programs() -> None:
    people = {command.callback for path, command in COMMANDS.items() if path[0] == "turnkeeper"}
    unreached = [" ".join(path) for path, command in COMMANDS.items() if not isinstance(command, Group)
                 and unwrapped(command.callback) not in {unwrapped(one) for one in people}]  # fmt: skip
    assert unreached == ["task-runner serve", "agent-runtime serve"], "name it in a `surface.py` of the package"


def unwrapped(callback: Any) -> Any:
    return getattr(callback, "__wrapped__", callback)


def test_every_command_of_turnkeeper_is_listed_under_what_it_is_for(capsys: Any) -> None:
    _, said, _ = outcome("-h", capsys=capsys)
    headings = [line.rstrip(":") for line in said.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings == [*(panel for panel in Panel if panel is not Panel.FIRE), "Options"]
    assert not any(isinstance(COMMANDS[path], Group) for path in COMMANDS if path[-1] == "serve")


def test_turnkeeper_alone_names_every_command_on_a_screen_of_24_lines_and_begins_with_those_most_need(
    capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, said, _ = outcome(capsys=capsys)
    lines = said.splitlines()
    assert (code, len(lines) < 24, max(map(len, lines)) <= 80) == (0, True, True)
    shown = {path[1] for path in COMMANDS if len(path) == 2 and path[0] == "turnkeeper"} - {"quiet", "interrupts"}
    assert shown <= set(said.split())
    assert [line.split()[0] for line in lines[3:9]] == ["init", "up", "task", "send", "triage", "status"]
    for words in commands.FIRST:
        path = tuple(word for word in words.split() if word.islower())
        assert ("turnkeeper", *path) in COMMANDS


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (("sttus",), "Did you mean status?"),
        (("create",), "Did you mean task create or loop create?"),
        (("task", "delet"), "Did you mean delete?"),
        (("task", "undo"), "Did you mean restore?"),
        (("tasks", "lst"), "Did you mean list?"),
        (("keys", "x"), "Use one of: list, rotate"),
    ],
)
def test_an_unknown_command_is_answered_with_what_may_be_meant(argv: tuple[str, ...], hint: str, capsys: Any) -> None:
    code, said, error = outcome(*argv, capsys=capsys)
    assert (code, said, hint in error) == (2, "", True)


def test_other_words_for_a_command_are_taken_but_not_listed(capsys: Any) -> None:
    for group in ("task", "deliver", "hooks", "folders", "peers"):
        code, said, _ = outcome(group, "--help", capsys=capsys)
        assert (code, "remove" in said, "enable " in said) == (0, False, False)
        assert helped(group, "remove", capsys=capsys) == helped(group, "delete", capsys=capsys)
    for word in ("unpause", "enable"):
        assert helped("task", word, capsys=capsys) == helped("task", "resume", capsys=capsys)
    assert "Overwrite a person's texts" in outcome("erase", "-h", capsys=capsys)[1], "a command is not an alias"


def helped(*words: str, capsys: Any) -> str:
    code, said, _ = outcome(*words, "-h", capsys=capsys)
    assert code == 0
    return said.partition("\n")[2]


def test_a_package_is_imported_when_a_command_of_it_is_used_and_not_before() -> None:
    code = """
import sys
from turnkeeper import console
from turnkeeper.console import commands
sys.stdout = open('/dev/null', 'w')
def loaded(*argv):
    console.run(console.program(), argv, commands.Program)
    return sorted(WATCHED & set(sys.modules))
WATCHED = {'task_runner', 'agent_runtime', 'turnkeeper.constellation', 'sqlalchemy', 'alembic', 'langgraph', 'langchain_core'}
print(loaded('--version'), loaded('task', 'next', '-h'), loaded('send', '-h'), loaded('--help'), file=sys.stderr, sep='\\n')
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == [
        "[]",
        "['task_runner']",
        "['agent_runtime', 'task_runner']",
        "['agent_runtime', 'task_runner']",
    ]


LIGHT = {"grpc", "pydantic", "rich", "asyncio", "google.protobuf", "sqlalchemy", "importlib.metadata", "email"}
STARTED = """
import atexit, sys
atexit.register(lambda: print('MODULES', *sys.modules, file=sys.stderr))
program = sys.argv.pop(1).replace("-", "_")
__import__("turnkeeper.console" if program == "turnkeeper" else f"{program}.cli")
sys.modules["turnkeeper.console" if program == "turnkeeper" else f"{program}.cli"].main()
"""


def started(*argv: str) -> set[str]:
    """Run a program in a process of its own; return the modules that it imported."""
    done = subprocess.run([sys.executable, "-c", STARTED, *argv], capture_output=True, text=True, check=True)
    return set(done.stderr.rpartition("MODULES ")[2].split())


@pytest.mark.parametrize("program", ["turnkeeper", "task-runner", "agent-runtime"])
def test_help_imports_no_command_and_none_of_what_commands_need(program: str) -> None:
    modules = started(program, "--help")
    assert "typer" in modules
    assert modules & LIGHT == set()
    assert [name for name in modules if ".cli." in name and not name.endswith(".surface")] == []


def test_a_list_and_a_preview_while_no_daemon_runs_import_neither_the_store_nor_grpc_nor_pydantic(home: Home) -> None:
    at = ["--home", str(home.root)]
    asked = ["task-runner", *at, "next", "--cron", "0 9 * * *", "-n", "3"]
    assert started(*asked) & LIGHT == {"google.protobuf"}
    assert "sqlalchemy" in started("task-runner", *at, "list"), "the first one makes the store"
    assert started("task-runner", *at, "list", "-n", "3", "-o", "wide") & LIGHT == {"google.protobuf"}
    home.config.write_text("[scheduler]\ntimezone = 'Asia/Tokyo'\n")
    assert started(*asked) & LIGHT == {"google.protobuf"}


def values(parameter: Any) -> Iterator[Any]:
    """Yield values that a command line, or a default, may give a parameter."""
    kind = parameter.type_descriptor.annotation
    texts = ["", "x", "é", "5", "-1", "007", "1_0", " 5", "99999999999999999999", "yes", "json", "JSON", "none"]
    given = texts + ([*kind] if isinstance(kind, type) and issubclass(kind, Enum) else [])
    given += {int: [0, 7, -1], bool: [True, False], float: [0.5]}.get(kind, [])
    yield None
    yield from ([], ["a=b"], ("c", "d")) if parameter.multiple or parameter.nargs == -1 else given


def outcome_of(convert: Callable[[], Any]) -> Any:
    try:
        value = convert()
    except Exception as error:  # noqa: BLE001  compared
        return type(error), str(error)
    return type(value), value


def test_a_value_is_read_as_typer_reads_it_though_pydantic_is_left_out_where_nothing_is_to_convert() -> None:
    compared = 0
    for path, command in COMMANDS.items():
        context = typer.Context(command, info_name=path[-1])
        for parameter in command.get_params(context):
            for value in () if parameter.callback else values(parameter):
                theirs = outcome_of(lambda: TyperOption.process_value(parameter, context, value))  # noqa: B023
                assert outcome_of(lambda: parameter.process_value(context, value)) == theirs, (path, parameter.name)  # noqa: B023
                compared += 1
    assert compared > 5000


def test_a_flag_can_be_negated_only_if_it_says_so(capsys: Any) -> None:
    """Typer adds `--no-NAME` to each flag that is named by its parameter alone."""
    declared, negated = set[str](), set[str]()
    for path, command in COMMANDS.items():
        for one in command.get_params(typer.Context(command, info_name=path[-1])):
            negated |= set(one.secondary_opts)
            declared |= {name for name in one.type_descriptor.parameter_info.param_decls or () if "/" in name}
    assert {f"/{name}" for name in negated} == {name[name.index("/") :] for name in declared}
    assert outcome("up", "--no-takeover", capsys=capsys)[0] == 2


def test_typer_is_patched_nowhere_no_object_of_it_has_a_function_in_place_of_a_method() -> None:
    checked = 0
    for path, command in COMMANDS.items():
        parameters = command.get_params(typer.Context(command, info_name=path[-1]))
        for one in (command, *parameters):
            methods = {name for name in dir(type(one)) if callable(getattr(type(one), name))}
            assert not methods & vars(one).keys() - {"callback", "help"}, (path, one)
            checked += 1
    assert checked > 1000


def test_what_help_says_of_a_command_before_it_is_imported_is_the_first_sentence_of_the_commands_help() -> None:
    said = 0
    for path, program in COMMANDS.items():
        for name, later in getattr(program, "later", {}).items():
            command, said = COMMANDS[*path, name], said + 1
            assert later.summary == command.get_short_help_str(300), name
            assert command.hidden == (later.panel is None)
    assert said > 60


FILE = '[[task]]\nname = "a"\ncron = "0 9 * * *"\ncategory = "loop"\nchannel = "general"\nprompt = "Look."\n'


def test_previews_need_no_home(tmp_path: Path, capsys: Any) -> None:
    file, home = tmp_path / "tasks.toml", tmp_path / "home"
    file.write_text(FILE)

    def say(*argv: str) -> tuple[int, str, str]:
        return outcome("--home", str(home), "--utc", *argv, capsys=capsys)

    span = ("--from", "2026-11-21", "--to", "2026-11-22")
    assert "09:00:00" in say("task", "next", "--cron", "0 9 * * *", "-n", "1")[1]
    assert "created" in say("task", "apply", "--dry-run", str(file))[1]
    assert "created" in say("task", "apply", "--diff", str(file))[1]
    assert "a     2026-11-21" in say("task", "simulate", str(file), *span)[1]
    assert "no problems" in say("categories", "check", str(ROOT / "categories" / "loop.toml"))[2]
    for argv in (("task", "apply", str(file)), ("task", "list"), ("task", "next", "a"), ("task", "simulate", *span)):
        assert say(*argv)[0] == 2
    assert "turnkeeper init" in say("task", "list")[2]
    assert not home.exists()


def test_json_is_taken_where_documents_say_so(capsys: Any) -> None:
    """The session and the reference promise `--json` for the commands with `-o`; each other command refuses it."""
    assert "`--json` if it has `-o`" in (ROOT / "docs" / "session.md").read_text()
    assert "A command with the option `-o` also takes `--json`." in (ROOT / "docs/reference/commands.md").read_text()
    leaves = {path: COMMANDS[path] for path in shown(groups=False) if path[0] == "turnkeeper"}
    asked = {path: outcome(*path[1:], "--json", "-h", capsys=capsys)[2] for path in leaves}
    refuse = {path for path, error in asked.items() if "No such option: --json" in error}
    assert refuse == {path for path, one in leaves.items() if not any("-o" in param.opts for param in one.params)}
    assert 10 < len(refuse) < len(leaves) / 2


def test_options_of_every_command_stand_anywhere(tmp_path: Path, capsys: Any) -> None:
    home = ("--home", str(tmp_path))
    assert outcome("--json", "keys", "list", *home, capsys=capsys)[1] == "[]\n"
    assert outcome("keys", "list", "-q", *home, capsys=capsys)[2] == ""
    assert "no key yet" in outcome("keys", "list", *home, capsys=capsys)[2]
    assert outcome("down", "--json", *home, capsys=capsys)[2].startswith("error: No such option: --json")
    for program in BUILT:
        code, said, error = outcome("--version", program=program, capsys=capsys)
        assert (code, error) == (0, "")
        assert re.fullmatch(r"turnkeeper 0\.1\.0(\+g[0-9a-f]{12})?\n", said)


@pytest.fixture
def say(tmp_path: Path, capsys: Any) -> Any:
    """Run a command of turnkeeper's in a home with two tasks, in this process and without a daemon."""

    def run(*argv: str) -> tuple[int, str, str]:
        return outcome("--home", str(tmp_path / "h"), "--utc", *argv, capsys=capsys)

    run("init")
    for name in ("digest", "watering"):
        run("task", "create", name, "--every", "5m", "--category", "loop", "--channel", "general", "--prompt", "p")
    return run


def test_a_task_is_named_by_the_beginning_of_its_name_if_no_other_begins_so(say: Any) -> None:
    code, said, error = say("task", "pause", "dig", "--until", "in 2h")
    assert code == 0
    assert re.fullmatch(r"digest paused until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d.*\n", said)
    assert "dig stands for digest" in error
    assert "paused" in say("task", "show", "digest")[1]
    say("task", "create", "digger", "--every", "5m", "--category", "loop", "--channel", "c", "--prompt", "p")
    code, _, error = say("task", "delete", "dig", "--yes")
    assert (code, "2 tasks begin with 'dig': digest, digger" in error) == (4, True)
    assert "did you mean watering?" in say("task", "show", "watring")[2]
    assert say("task", "show", "nothing-like-it")[0] == 3


@pytest.mark.parametrize("group", ["task", "loop"])
def test_tasks_and_loops_come_page_by_page_with_their_total(say: Any, group: str) -> None:
    for hours in ("2h", "3h", "4h"):
        say("loop", "create", hours, "look")
    every = say(group, "list", "-o", "name")[1].split()
    seen, cursor = list[str](), list[str]()
    for _ in every:
        code, said, error = say(group, "list", "-n", "1", "-o", "name", *cursor)
        assert code == 0
        seen += said.split()
        cursor = ["--cursor", error.rpartition(" ")[2].strip()] if "--cursor" in error else []
        assert f"{len(every)} in all, of which 1 are shown" in error or seen == every
    assert (seen, cursor) == (every, [])
    assert say(group, "list", "--cursor", "x")[0] == 2


def test_every_command_takes_times_in_the_same_forms(say: Any) -> None:
    for option, time in (("--start", "tomorrow 9am"), ("--end", "in 9d"), ("--expires", "2h")):
        code, _, error = say("task", "edit", "digest", option, time)
        assert code == 0, error
    say("task", "create", "once", "--at", "mon 17:30", *["--category", "loop", "--channel", "c", "--prompt", "p"])
    assert "17:30:00" in say("task", "list")[1]
    assert say("task", "explain", "digest", "--at", "2h ago")[0] == 0
    assert say("task", "backfill", "digest", "--from", "2d", "--to", "yesterday noon", "--dry-run")[0] == 0
    assert say("task", "simulate", "digest", "--from", "now", "--to", "in 2h")[0] == 0
    assert say("task", "next", "--cron", "0 9 * * *", "--from", "tomorrow noon")[0] == 0
    assert say("categories", "rehearse", str(ROOT / "categories" / "loop.toml"), "--since", "yesterday")[0] == 0
    code, _, error = say("task", "pause", "digest", "--until", "someday")
    assert (code, "tomorrow 9am, 17:30" in error) == (2, True)


def test_a_deletion_is_asked_for_on_a_terminal_and_undone(say: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for answer, code in (("n\n", 130), ("y\n", 0)):
        terminal = io.StringIO(answer)
        monkeypatch.setattr(terminal, "isatty", lambda: True)
        monkeypatch.setattr(sys, "stdin", terminal)
        done, said, error = say("task", "delete", "dig")
        assert (done, "Delete digest?" in error, "digest deleted" in said) == (code, True, code == 0)
    assert "deleted" in say("task", "show", "digest")[1]
    assert say("task", "history", "digest")[0] == 0
    assert "turnkeeper task restore" in say("task", "pause", "digest")[2]
    assert say("task", "restore", "digest")[:2] == (0, "digest restored\n")
    assert say("task", "delete", "digest", "--yes")[:2] == (0, "digest deleted\n")


LISTS = [
    path
    for path, command in COMMANDS.items()
    if path[0] == "turnkeeper" and not isinstance(command, Group)
    and (path[-1] in {"list", "history", "attachments", "quarantine", "namespaces"} or path[-2:] == ("memory", "search"))
]  # fmt: skip


@pytest.mark.parametrize("path", LISTS, ids=" ".join)
def test_every_list_comes_page_by_page_and_can_be_watched(path: tuple[str, ...]) -> None:
    parameters = {option: one for one in COMMANDS[path].params for option in one.opts}
    wanted = {"--limit", "-n", "--cursor", "--watch", "-w"} - ({"--watch", "-w"} if path[-1] == "search" else set())
    assert wanted <= set(parameters)


def test_whatever_takes_a_cursor_is_among_the_lists() -> None:
    paged = {path for path, command in COMMANDS.items() if {"--cursor"} & {o for p in command.params for o in p.opts}}
    shown = ("turnkeeper", "conversation", "show")  # no list: its pages go back in time, and it is followed
    states = {("turnkeeper", "peers", "status"), ("turnkeeper", "deliver", "log")}
    assert {path for path in paged if path[0] == "turnkeeper"} == {*LISTS, shown, *states}


def test_a_list_that_is_watched_is_shown_again_until_it_is_interrupted(
    say: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = iter([None, None, KeyboardInterrupt()])

    def wait(_self: object, _seconds: float) -> None:
        if (stop := next(shown)) is not None:
            raise stop

    monkeypatch.setattr(console.SystemClock, "block", wait)
    for argv in (("task", "list"), ("keys", "list"), ("categories", "list"), ("status",), ("inbox", "list")):
        shown = iter([None, None, KeyboardInterrupt()])
        code, said, _ = say(*argv, "-w", "-o", "name")
        assert (code, said) == (130, say(*argv, "-o", "name")[1] * 3), argv


def test_the_keys_of_a_home_come_page_by_page_with_their_total(say: Any, tmp_path: Path) -> None:
    keys, clock, entropy = KeyFile(Home(root=tmp_path / "h")), console.SystemClock(), SystemEntropy()
    keys.create(clock.now(), entropy, lambda _key: None)
    keys.rotate(clock.now(), entropy)
    every = say("keys", "list", "-o", "name")[1].split()
    code, said, error = say("keys", "list", "-n", "1", "-o", "name")
    assert (code, said.split(), "2 in all, of which 1 are shown; the next: --cursor" in error) == (0, every[:1], True)
    assert say("keys", "list", "-o", "name", "--cursor", error.rpartition(" ")[2].strip())[1].split() == every[1:]


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)


TIME = re.compile(r"(Mon|Tue|Wed|Thu|Fri|Sat|Sun) \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ")


@pytest.mark.parametrize("columns", [80, 100])
def test_times_are_written_for_people_and_never_broken(say: Any, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    say("task", "run", "digest")
    on_a_terminal(monkeypatch, columns)
    for argv in (
        ("task", "explain", "digest"),
        ("task", "explain", "watering", "--at", "in 2h"),
        ("task", "backfill", "digest", "--from", "2020-01-01", "--to", "2020-01-02", "--dry-run"),
    ):
        code, said, _ = say(*argv)
        said = re.sub("\x1b[^m]*m", "", said)
        assert (code, max(map(len, said.splitlines())) <= columns) == (0, True), said
        assert not re.search(r"\d\.\d|-\d\d\n\s*\d\d:", said), said
    monkeypatch.undo()
    assert TIME.search(say("task", "explain", "digest")[1])
    assert "It was asked for at " in say("task", "explain", "digest")[1]
    assert "was due" not in say("task", "explain", "digest")[1]
    spec = ("--cron", "0 0 * * *", "--tz", "UTC", "--category", "loop", "--channel", "c", "--prompt", "p")
    say("task", "create", "nightly", *spec)
    command = say("task", "explain", "nightly", "--at", "2020-01-01T00:00:00Z")[1]
    assert "--from 2020-01-01T00:00:00Z --to" in command, "what is typed again stays as it can be read"


@pytest.mark.parametrize(
    "argv", [("task", "show", "digest"), ("task", "next", "digest"), ("task", "edit", "digest", "--every", "7m")]
)
def test_a_time_that_comes_is_shown_with_its_day_of_the_week(say: Any, argv: tuple[str, ...]) -> None:
    assert TIME.search(say(*argv)[1])


def test_loops_are_listed_with_their_prompts_on_a_narrow_terminal(say: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    say("loop", "create", "15m", "check the build")
    on_a_terminal(monkeypatch, 80)
    assert "check the build" in say("loop", "list")[1]


def test_categories_are_listed_with_their_tools_and_whole_on_a_narrow_terminal(
    say: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_terminal(monkeypatch, 80)
    _, said, error = say("categories", "list")
    assert "Works through one iteration of a loop, keeps its place in the channel's memory" in " ".join(said.split())
    assert "tools: conversation.read, memory.read, summary.propose" in said
    assert "…" not in said
    assert "turnkeeper categories show NAME" in error
    assert "--cursor" in say("categories", "list", "-n", "1")[2]


def test_what_the_example_of_init_is_for_is_said(tmp_path: Path, capsys: Any) -> None:
    _, _, told = outcome("init", "--example", "--home", str(tmp_path / "h"), capsys=capsys)
    for part in (
        "next: turnkeeper up",
        "turnkeeper task apply",
        f"each morning, whats-new reads {Path.cwd()}",
        "task run whats-new",
    ):
        assert part in told


def test_a_demonstration_on_several_machines_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("examples.demo.postgres.find_binaries", lambda: None)
    with pytest.raises(TurnkeeperError, match="PostgreSQL is not installed on this machine; .*make test-services"):
        importlib.import_module("examples.demo.cluster").perform(keep=False)
