"""Rules of the house that no linter knows: sizes, names, and what a text of ours may mention."""

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from itertools import pairwise
from pathlib import Path

import pytest

from tests.conftest import run_together

ROOT = Path(__file__).parent.parent
PACKAGES = ("turnkeeper", "task_runner", "agent_runtime")
GENERATED = ROOT / "turnkeeper" / "v1"  # the stubs of the contract
LONGEST_FUNCTION = 60
LONGEST_MODULE = 600
LONGEST_COMMON_MODULE = 450  # nine modules out of ten are; a module is split by thought, not at a limit
LONGEST_TYPICAL_FUNCTION = 6  # half of all functions are at most this long
LONGEST_COMMON_FUNCTION = 20  # nine functions out of ten are
SMALL_MODULE = 50  # a module of fewer lines rarely holds a whole thought

# Ratchets: lower them when the code allows it; never raise them. The total is the exception: a feature may raise it, in a
# commit that says which one. 42,000 was the size before PostgreSQL, sealed envelopes, faults, and approvals that end;
# 49,000 before LangGraph projects of any form, and threads that are brought along; 53,400 before tables of commands that
# are imported when they are used, and benchmarks with gates; 54,200 before the timeline and standing exceptions;
# 57,000 before metrics, traces, and records in chains; 60,600 before the web page, the LangGraph API, MCP, the Python client,
# and several machines on PostgreSQL; 75,000 before status, doctor, queries and peers of several machines; 78,500 before fires
# that go to the machine that can begin them, and starts that wait for their database at any step; 79,000 before trouble of the
# machine that comes and goes, stores that know each other, approvals of a tool's content, and homes of mixed versions.
# 80,938 before a folder of the author that turns may read; 81,354 before what documents promise about keys, categories and times.
# 81,839 before results that reach people; 84,752 before steps that graphs and their subgraphs no longer have.
# 84,385 before outcomes told as they are, pauses of many tasks, tasks that follow others with their answers, and assistants
# of LangGraph's clients that are kept.
# 85,473 before what clients of other servers of the Agent Protocol read in runs.
# 86,366 before tools of MCP servers and of Python files.
# 87,765 before the places where a simulation puts its own clock, threads and files.
# 87,921 before a webhook of a run whose address is odd, or whose thread was deleted.
# 89,537 before the places at which a test kills the gateway while it takes a webhook.
# 89,541 before models that categories name.
# 89,707 before text files that an author gives with a prompt.
# 90,158 before the decisions that the page lists.
# 90,244 before the deliveries of stops by budgets.
# 90,272 before explanations of tasks that follow others, and of times of day.
# 90,554 before the tool with which an agent says that it failed.
# 90,566 before the cordon of a machine.
# 90,903 before words about times that no expression says, rules without a minute, and deliveries of skipped times.
# 90,958 before edits of one limit or label, and edits that resume what a budget stops.
# 90,980 before an interface of engines, a decision without a graph, and rows of checkpoints without a database.
# 91,063 before queues.
# 91,540 before names of imported jobs, and lists of tasks by outcome.
# 91,682 before tables of prices that are named in refusals, and warnings of digests that go out too early.
# 91,713 before explanations of weekdays to come, and of calls that standing exceptions allow.
# 91,732 before what pauses skip, and deliveries and budgets that the page lists.
# 91,765 before fields that graphs return besides an answer.
# 91,795 before edits of targets, and deliveries that are sent or dropped by a command.
# 91,853 before warnings of fields that only `--input` sets.
# 91,895 before words on cron expressions that are misread, and warnings of imports.
MOST_LINES = 92_104
MOST_FOLDER_ENTRIES = 12
MOST_IMPORT_LINES = 0.06  # of all lines
MOST_SMALL_MODULES = 0.04  # of all modules but the registrations of surfaces, which are rows of a table

NO_VERBS = {
    "A",
    "All",
    "As",
    "By",
    "How",
    "It",
    "Its",
    "Likewise",
    "Of",
    "Once",
    "Only",
    "That",
    "The",
    "Those",
    "What",
    "Whatever",
}
NO_VERBS |= {"When", "Where", "Whether", "Which", "Who", "Whom", "With"}
UNCLEAR = re.compile(
    r"\b(?:nobody|goes on|go on|went on|going on|for ever|lives|lets? go|takes? none|of those that|such as are|likewise"
    r"|Return (?:what|where|who)|(?:empty|None|False|True) where|keeps? its place|anew)\b"
    r"|(?<=[a-z`)]), (?:empty|None) (?:if|for|when)\b"  # a second result is told by `or`
)
UNCLEAR_EVERYWHERE = re.compile(
    r"(?<!\b[Tt]here )\b(?:is|are|was|were) no (?!longer\b|more\b|less\b)"  # "is not a"
    r"|\banother \w+(?: \w+)? than\b|\blists? of texts\b"
)
ACTS_AS_A_VERB = re.compile(r"[A-Z]\w*[^s\W]s (?:a|an|the|each|every|all|both)\b|(?:How|That|What|When|Whether|Who)\b")

NAMES_OF_NOTHING = {"utils", "common", "manager", "helper", "helpers", "misc"}


@cache
def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    return [ROOT / name for name in listed if name and (ROOT / name).is_file()]


@cache
def own_modules() -> list[Path]:
    return [
        path for path in tracked("*.py") if path.relative_to(ROOT).parts[0] in PACKAGES and path.parent != GENERATED
    ]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All that a module consists of; parsed once."""
    return tuple(ast.walk(ast.parse(path.read_text())))


@pytest.fixture(scope="module", autouse=True)
def nothing_parsed_is_kept() -> Iterator[None]:
    """The garbage collector would go through all of it in each of the tests behind these."""
    yield
    nodes.cache_clear()


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def functions(path: Path) -> Iterator[tuple[str, int]]:
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def imports(path: Path) -> Iterator[ast.Import | ast.ImportFrom]:
    """Every import of a module, also those inside functions."""
    return (node for node in nodes(path) if isinstance(node, ast.Import | ast.ImportFrom))


def imported(path: Path, modules: frozenset[str]) -> Iterator[str]:
    """Those of `modules` that a module imports, or imports a name from."""
    for node in imports(path):
        if isinstance(node, ast.Import):
            names = [(alias.name, alias.name) for alias in node.names]
        else:
            assert not node.level, f"{name(path)} imports by a relative name"
            names = [(f"{node.module}.{alias.name}", str(node.module)) for alias in node.names]
        for whole, package in names:
            yield from [found for found in (whole, package) if found in modules][:1]


def test_a_module_fits_in_a_head() -> None:
    long = {name(path): lines(path) for path in own_modules() if lines(path) > LONGEST_MODULE}
    assert not long, "split it"


def test_most_modules_are_well_below_the_limit() -> None:
    lengths = sorted(lines(path) for path in own_modules() if lines(path))
    assert lengths[len(lengths) * 9 // 10] <= LONGEST_COMMON_MODULE


def test_so_does_a_module_of_tests() -> None:
    assert not {name(path): lines(path) for path in tracked("tests/*.py") if lines(path) > LONGEST_MODULE}


def test_a_function_fits_on_a_screen() -> None:
    long = [
        f"{name(path)}: {function} has {length} lines"
        for path in own_modules()
        for function, length in functions(path)
        if length > LONGEST_FUNCTION
    ]
    assert not long


def test_a_module_is_named_for_what_it_is() -> None:
    assert not [name(path) for path in own_modules() if path.stem in NAMES_OF_NOTHING]


def docstrings_of_functions(path: Path) -> Iterator[str]:
    """Yield the docstring of each function of a module; a property is an attribute, so it begins with a noun."""
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (text := ast.get_docstring(node)):
            is_property = any("property" in ast.unparse(decorator) for decorator in node.decorator_list)
            yield from () if is_property else (text,)


def sentences(path: Path) -> Iterator[str]:
    """Yield each string and each comment of a module."""
    yield from (node.value for node in nodes(path) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    yield from re.findall(r"#.*", path.read_text())


def test_the_docstring_of_a_function_begins_with_a_verb() -> None:
    found = [
        f"{name(path)}: {text.splitlines()[0]}"
        for path in own_modules()
        for text in docstrings_of_functions(path)
        if text.split()[0] in NO_VERBS
    ]
    assert not found


def test_the_docstring_of_a_class_begins_with_a_noun() -> None:
    documented = [(path, node) for path in own_modules() for node in nodes(path) if isinstance(node, ast.ClassDef)]
    texts = [(path, ast.get_docstring(node) or "") for path, node in documented]
    assert not [f"{name(path)}: {text.splitlines()[0]}" for path, text in texts if ACTS_AS_A_VERB.match(text)]


def test_sentences_are_read_once() -> None:
    found = [
        f"{name(path)}: {phrase[0]}"
        for path in own_modules()
        for text in sentences(path)
        for unclear in (UNCLEAR, UNCLEAR_EVERYWHERE)
        for phrase in unclear.finditer(" ".join(text.split()))
    ]
    assert not found


def test_sentences_of_documents_are_read_once() -> None:
    texts = {name(path): " ".join(path.read_text().split()) for path in tracked("*.md")}
    assert not [f"{page}: {phrase[0]}" for page, text in texts.items() for phrase in UNCLEAR_EVERYWHERE.finditer(text)]


def test_functions_are_short() -> None:
    lengths = sorted(length for path in own_modules() for _, length in functions(path))
    assert lengths[len(lengths) // 2] <= LONGEST_TYPICAL_FUNCTION
    assert lengths[len(lengths) * 9 // 10] <= LONGEST_COMMON_FUNCTION


def test_a_folder_is_taken_in_at_a_glance() -> None:
    entries: dict[Path, set[str]] = {}
    for path in tracked(*PACKAGES):
        for folder in path.relative_to(ROOT).parents[:-1]:
            entry = path.relative_to(ROOT / folder).parts[0]
            if (
                entry not in {"__init__.py", "migrations", GENERATED.name}
                and "migrations" not in folder.parts
                and path.parent != GENERATED
            ):
                entries.setdefault(folder, set()).add(entry)
    full = {str(folder): sorted(names) for folder, names in entries.items() if len(names) > MOST_FOLDER_ENTRIES}
    assert not full, "group what belongs together"


def test_the_code_stays_small() -> None:
    total = sum(map(lines, own_modules()))
    assert total <= MOST_LINES


def test_few_lines_are_imports() -> None:
    """Where many lines are imports, one thought is spread over many modules."""
    paths = own_modules()
    spent = sum((node.end_lineno or node.lineno) - node.lineno + 1 for path in paths for node in imports(path))
    share = spent / sum(map(lines, paths))
    assert share <= MOST_IMPORT_LINES


def test_few_modules_are_small() -> None:
    counted = [path for path in own_modules() if path.name not in {"__init__.py", "surface.py"}]
    counted = [path for path in counted if "migrations" not in path.parts]
    small = [name(path) for path in counted if lines(path) < SMALL_MODULE]
    assert len(small) / len(counted) <= MOST_SMALL_MODULES, small


def test_no_modules_import_each_other() -> None:
    modules = frozenset(map(module_name, own_modules()))
    graph = {module_name(path): set(imported(path, modules)) for path in own_modules()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules


def test_tests_that_share_a_constellation_run_on_one_worker() -> None:
    shares, does_not = "tests/acceptance/test_peers.py", "tests/acceptance/test_crashes.py"
    assert {run_together(f"{shares}::test_{name}") for name in ("one", "two[a::b]")} == {shares}
    assert run_together(f"{does_not}::test_one") == f"{does_not}::test_one", "several workers share the long ones"
    assert run_together("tests/test_tidy.py::test_one") == "tests/test_tidy.py"


# What others load by its name: LangChain a provider, trafilatura and Starlette what they need and do not declare.
LOADED_BY_OTHERS = {"langchain-anthropic", "lxml-html-clean", "python-multipart"}


def test_every_package_that_is_installed_with_ours_is_used() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ours = {"dev", "bench", "stubs", "docs"}  # what builds, measures and documents the product
    extras = (needed for extra, needed in project["optional-dependencies"].items() if extra not in ours)
    declared = {re.match(r"[\w.-]+", one)[0].lower() for needed in [project["dependencies"], *extras] for one in needed}
    texts = "\n".join(path.read_text() for path in own_modules())
    named = set(re.findall(r"(?:\bimport |\bfrom |[\"'])([A-Za-z]\w*)", texts))
    owners = packages_distributions()
    used = {one.lower().replace("_", "-") for module in named for one in owners.get(module, ())}
    assert declared - used - LOADED_BY_OTHERS == set()


def raises_in_handlers_of_groups(module: tuple[ast.AST, ...]) -> Iterator[int]:
    """Yield the lines at which an `except*` raises an error."""
    handlers = (one for node in module if isinstance(node, ast.TryStar) for one in node.handlers)
    return (node.lineno for one in handlers for node in ast.walk(one) if isinstance(node, ast.Raise))


def test_no_handler_of_groups_raises() -> None:
    """Python before 3.11.4 wraps an error that an `except*` raises in a group, so that callers do not catch it."""
    assert not [f"{name(path)}:{line}" for path in own_modules() for line in raises_in_handlers_of_groups(nodes(path))]


# Where the two daemons' packages may make a clock, randomness, files or a thread of a store. A simulation passes its own to all else.
SYSTEM = frozenset({"SystemClock", "SystemEntropy", "SystemFiles", "GroupingFiles", "WorkerThread"})
OUTSIDE_A_SIMULATION = {
    "agent_runtime/daemon/assembly.py",  # the process itself, around what `assemble` makes
    "task_runner/daemon/__main__.py",
    "task_runner/daemon/reads.py",  # commands that read the store while no daemon runs
    "task_runner/scheduler/calendar/calendar.py",  # reads the calendar's file when a process starts, and for commands
    "agent_runtime/mailbox/inbox.py",  # commands of agents in terminals
    "agent_runtime/service/threads.py",  # a command that imports threads while no daemon runs
    "agent_runtime/graph/guard/identity.py",  # a secret of the process, which is never told
}


def made_here(module: tuple[ast.AST, ...]) -> Iterator[str]:
    """Yield what a module makes instead of taking it as an argument; a default after `or` is no such case."""
    defaults = {id(value) for node in module if isinstance(node, ast.BoolOp) for value in node.values[1:]}
    for node in module:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and id(node) not in defaults:
            yield from {node.func.id} & SYSTEM


def test_what_a_simulation_replaces_is_an_argument() -> None:
    daemons = [path for path in own_modules() if path.relative_to(ROOT).parts[0] in {"task_runner", "agent_runtime"}]
    bound = [path for path in daemons if not {"cli", "commands.py"} & set(path.parts)]
    bound = [path for path in bound if name(path) not in OUTSIDE_A_SIMULATION]
    assert not {name(path): made for path in bound if (made := set(made_here(nodes(path))))}


@pytest.mark.parametrize(
    "planted",
    [
        "clock = SystemClock()",
        "Part(entropy=SystemEntropy())",
        "self._files = SystemFiles()",
        "WorkerThread('db', run)",
    ],
)
def test_what_a_module_makes_itself_is_found(planted: str) -> None:
    assert list(made_here(tuple(ast.walk(ast.parse(planted)))))
    assert not list(made_here(tuple(ast.walk(ast.parse("clock = clock or SystemClock()")))))


def test_the_runtime_knows_nothing_of_schedules() -> None:
    for path in own_modules():
        place = path.relative_to(ROOT)
        if place.parts[0] != "agent_runtime" or place in {
            Path("agent_runtime/tools/loops.py"),
            Path("agent_runtime/tools/tasks.py"),
            Path("agent_runtime/cli/chat/loops.py"),
            Path("agent_runtime/graph/context.py"),
        }:
            continue
        assert not re.search(r"\bcron|schedul", path.read_text(), re.IGNORECASE), place


def test_langgraph_stays_where_it_is_used() -> None:
    for path in own_modules():
        place = path.relative_to(ROOT)
        if place.parts[:2] in {("agent_runtime", "graph"), ("agent_runtime", "tools")}:
            continue
        imports = re.search(r"^\s*(?:from|import) lang(?:graph|chain)", path.read_text(), re.MULTILINE)
        assert not imports or place == Path("agent_runtime/daemon/__main__.py"), place


def test_decisions_are_numbered_and_say_what_they_cost() -> None:
    pages = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    for page in pages:
        text = page.read_text()
        for part in ("Date:", "Status:", "## Context", "## Decision", "## Consequences", "## How we would notice"):
            assert part in text, f"{page.name} lacks {part}"
        assert len(text.split()) < 700, f"{page.name} is longer than a page"


def test_the_migrations_of_each_store_are_one_chain() -> None:
    """Two branches that each add a migration can merge without a conflict. Alembic then refuses to upgrade any home."""
    folders = {path.parent for path in tracked("*/migrations/versions/*.py")}
    assert len(folders) >= 3
    for folder in folders:
        chain = [
            (path.name[:4], *re.findall(r'^(?:down_)?revision = (?:"(\w+)"|None)$', path.read_text(), re.MULTILINE))
            for path in sorted(folder.glob("[0-9]*.py"))
        ]
        numbers = ["", *(f"{number:04}" for number in range(1, len(chain) + 1))]
        assert chain == [(own, own, earlier) for earlier, own in pairwise(numbers)], name(folder)


def test_no_text_names_a_machine() -> None:
    suspicious = re.compile(r"/root/|/work/|/home/[a-z]+/")
    for path in tracked("*.py", "*.md", "*.toml", "*.sh", "Makefile", ".ci/run"):
        if path == Path(__file__):
            continue
        assert not suspicious.search(path.read_text()), path


def test_the_unit_tests_of_a_module_are_found_by_its_path() -> None:
    unit = ROOT / "tests" / "unit"
    for path in tracked("tests/unit/*.py"):
        if not path.name.startswith("test_"):
            continue
        package = ROOT / path.parent.relative_to(unit)
        modules = {module.stem for module in package.glob("*.py")} | {package.name}
        modules |= {folder.parent.name for folder in package.glob("*/__init__.py")}
        about = path.stem.removeprefix("test_")
        assert any(about == module or about.startswith(f"{module}_") for module in modules), name(path)


# Where a statement may be written for one database: what both stores say goes through turnkeeper/storage.
SPEAK_TO_A_DATABASE = {
    "turnkeeper/storage",
    "turnkeeper/storage/server",
    "agent_runtime/graph/checkpointer/rows.py",
    "agent_runtime/graph/checkpointer/sqlite.py",
    "agent_runtime/graph/checkpointer/postgres.py",
    "turnkeeper/constellation/upkeep/migrate.py",  # copies every table from one into the other
    "turnkeeper/constellation/query",  # a SELECT of the user's, run by SQLite itself
    "turnkeeper/constellation/timeline/stores.py",  # reads the files of a home, also where no daemon runs
    "agent_runtime/graph/checkpointer/threads_file.py",  # of LangGraph's SQLite saver, whatever our own store is
}
DRIVERS = re.compile(r"sqlite3|aiosqlite|psycopg\w*|asyncpg|sqlalchemy\.dialects")
OWN_OPTIONS = re.compile(
    r"(?:sqlite|postgresql)_(?!errorcode)|on_conflict_|exec_driver_sql$|driver_connection$|dialect$"
)
PORTABLE_FUNCTIONS = {"abs", "count", "min", "max", "coalesce", "trim", "length"}
OWN_WORDS = re.compile(
    r"""\b(?:INSERT\ OR|REPLACE\ INTO|ON\ CONFLICT|BEGIN\ IMMEDIATE|PRAGMA|GLOB|ILIKE|REGEXP|NOCASE|COLLATE|AUTOINCREMENT|VACUUM
    |RETURNING|DISTINCT\ ON|SKIP\ LOCKED|FOR\ UPDATE|bytea|jsonb?_\w+|json_each|sqlite_(?!errorcode)\w+|rowid|last_insert_rowid
    |total_changes|group_concat|string_agg|array_agg|strftime|julianday|unixepoch|to_char|ifnull|iif|typeof|printf
    |pg_\w+|regclass)\b | LIMIT\ -1""",
    re.VERBOSE,
)
FRAGMENT = re.compile(r"(?:\s|[(),=]|<>|:?[a-z_]+(?:\.[a-z_]+)?|'\w*'|\b(?:IN|IS|NOT|NULL|AND|OR)\b)*")


def one_databases_own(module: tuple[ast.AST, ...]) -> Iterator[str]:
    """What a module says that only one database understands, or that nobody has shown both to."""
    documented = {id(node.value) for node in module if isinstance(node, ast.Expr)}
    for node in module:
        match node:
            case ast.Import(names=aliases):
                yield from (alias.name for alias in aliases if DRIVERS.match(alias.name))
            case ast.ImportFrom(module=str(module), names=aliases):
                whole = (f"{module}.{alias.name}" for alias in aliases)
                yield from (each for each in whole if DRIVERS.match(each))
            case ast.keyword(arg=str(option)) | ast.Attribute(attr=option) if OWN_OPTIONS.match(option):
                yield option
            case ast.Attribute(value=ast.Name("func") | ast.Attribute(attr="func"), attr=function):
                yield from {f"func.{function}"} - {f"func.{each}" for each in PORTABLE_FUNCTIONS}
            case ast.Call(
                func=ast.Name("text") | ast.Attribute(ast.Name("sa" | "sqlalchemy"), "text"), args=[said, *_]
            ):
                if not (isinstance(said, ast.Constant) and FRAGMENT.fullmatch(str(said.value))):
                    yield f"text({ast.unparse(said)})"
            case ast.Constant(value=str(said)) if id(node) not in documented:
                yield from OWN_WORDS.findall(said)


def test_statements_for_one_database_stand_in_the_statement_layer() -> None:
    bound = [
        path
        for path in own_modules()
        if "migrations" not in path.parts and not {name(path), str(path.parent.relative_to(ROOT))} & SPEAK_TO_A_DATABASE
    ]
    assert not {name(path): said for path in bound if (said := list(one_databases_own(nodes(path))))}


@pytest.mark.parametrize(
    "planted",
    [
        "import sqlite3",
        "from sqlite3 import Connection",
        "def lazily():\n    import psycopg.rows",
        "from sqlalchemy import dialects",
        "from sqlalchemy.dialects import sqlite",
        "from sqlalchemy.dialects.postgresql import insert",
        "Index('a', 'b', sqlite_where=condition)",
        "Table('t', metadata, sqlite_autoincrement=True)",
        "insert(table).on_conflict_do_nothing()",
        "connection.exec_driver_sql('SELECT 1')",
        "if connection.dialect.name == 'sqlite': pass",
        "select(func.group_concat(table.c.name))",
        "select(sa.func.json_each(table.c.names))",
        "query = 'INSERT OR IGNORE INTO t VALUES (1)'",
        "query = f'SELECT {column} FROM json_each(?)'",
        "query = 'PRAGMA quick_check'",
        "query = \"SELECT seq FROM sqlite_sequence WHERE name = 't'\"",
        "query = 'SELECT rowid FROM t'",
        "query = \"SELECT 1 FROM t WHERE name GLOB 'a*'\"",
        "query = 'INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING'",
        "query = \"SELECT strftime('%Y', at) FROM t\"",
        "query = 'SELECT pg_backend_pid()'",
        "query = 'SELECT 1 FROM t FOR UPDATE SKIP LOCKED'",
        "where(text('is_open = 1'))",
        "where(text('+turns.thread_id = :thread_id'))",
        "where(sa.text('name::bytea = :name'))",
        "where(text(f'{column} = :name'))",
        "where(text('name ILIKE :name'))",
    ],
)
def test_a_statement_for_one_database_is_found(planted: str) -> None:
    assert list(one_databases_own(tuple(ast.walk(ast.parse(planted)))))


@pytest.mark.parametrize(
    "sound",
    [
        '"""A module about PRAGMA and rowid."""',
        "at.strftime('%Y')",
        "select(func.count(), func.coalesce(func.max(t.c.number), 0))",
        "where(text(\"keys.became = 'held' AND NOT keys.released\"))",
        "where(text(\":thread_id IN ('', kept.thread_id)\"))",
        "message = 'pick a globe'",
        "code = getattr(error, 'sqlite_errorcode', None)",
    ],
)
def test_what_every_database_understands_is_let_by(sound: str) -> None:
    assert not list(one_databases_own(tuple(ast.walk(ast.parse(sound)))))
