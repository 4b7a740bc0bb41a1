"""Fixtures that every kind of test uses."""

import gc
import os
import resource
import shlex
import tempfile
from collections.abc import Generator, Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.support import databases, postgres
from tests.support.clock import ManualClock
from tests.support.forked import Template
from tests.support.hangs import waits
from turnkeeper import console
from turnkeeper.config.home import Home

os.environ.setdefault("LANGGRAPH_STRICT_MSGPACK", "true")  # as the daemon does, before anything imports LangGraph
hypothesis.settings.load_profile("ci")  # the same examples in each run, however long a loaded machine takes for one
TESTS = Path(__file__).parent
MEMORY = Path("/dev/shm")
GARBAGE = 10_000  # new objects after which the garbage collector looks at them; there is room for more than by default
ROOM = 2 << 30


def use_memory() -> None:
    """Put temporary files into memory where it has room for them: SQLite syncs at every commit, and a disk takes long.

    Whatever a killed process wrote is there as well; what a disk keeps when the power fails, no test can see.
    """
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK | os.X_OK):
        return
    room = os.statvfs(MEMORY)
    if room.f_bavail * room.f_frsize >= ROOM and not room.f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = str(MEMORY)
        tempfile.tempdir = None


use_memory()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--database",
        choices=["sqlite", "postgres"],
        default="sqlite",
        help="where stores are; with postgres, only tests whose stores may be on either are run (default: sqlite)",
    )
    parser.addoption(
        "--clients", action="store_true", help="run only tests with Chromium and Node, which other runs skip"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make the templates where tests run: what hands them out to workers would wait for all that they import."""
    if not config.getoption("numprocesses", None):
        import_module("tests.support.templates").use()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep what this run is about: on SQLite all tests, on PostgreSQL those that run there; or a client's alone."""
    config.stash[databases.MODULES] = databases.modules(items)
    # The modules that read the whole repository, and the simulation's, take longest and are handed out first.
    items.sort(key=lambda item: item.path.parent not in {TESTS, TESTS / "simulation"})
    on_server = config.getoption("--database") != "sqlite"
    if on_server:
        keep(config, items, [item for item in items if databases.runs_on_server(item)])
    if config.getoption("--clients"):
        keep(config, items, [item for item in items if item.get_closest_marker("client")])
    for item in items:
        if on_server and (only := item.get_closest_marker("sqlite_only")) is not None:
            item.add_marker(pytest.mark.skip(reason=f"on SQLite only: {only.args[0]}"))
        if not on_server and not config.getoption("--clients") and item.get_closest_marker("client"):
            item.add_marker(pytest.mark.skip(reason="with Chromium and Node: make test-clients, or --clients"))


def keep(config: pytest.Config, items: list[pytest.Item], chosen: list[pytest.Item]) -> None:
    config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
    items[:] = chosen


class ModuleByModule(LoadScopeScheduling):
    """Hands out modules, whose fixtures one worker makes once; one by one what starts processes and shares none."""

    def _split_scope(self, nodeid: str) -> str:
        return run_together(nodeid)


def run_together(nodeid: str) -> str:
    """Return what a test has in common with those that run on its worker: its module, or nothing but itself."""
    module = nodeid.partition("::")[0]
    return nodeid if takes_long(module) else module


@cache
def takes_long(module: str) -> bool:
    path = TESTS.parent / module
    text = path.read_text() if path.is_file() else ""  # a test of the workers runs modules of another folder
    return "pytest.mark.process" in text and 'scope="module"' not in text


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    return ModuleByModule(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[Any]) -> None:
    """Fork the workers from a process that has collected the tests; each would import all that they need."""
    template = Template("tests.support.forked_workers", *map(str, config.invocation_params.args))
    config.add_cleanup(template.close)
    for spec in specs:
        spec.python = shlex.join(template.fork)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from what the tests are: each pass over all of it takes as long as a test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(GARBAGE)
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what each task waits for if a test takes too long."""
    report = yield
    if call.excinfo is not None and "from pytest-timeout" in str(call.excinfo.value):
        report.sections.append(("Tasks", waits()))
    return report


@pytest.fixture(scope="session")
def postgres_server(request: pytest.FixtureRequest) -> Iterator[postgres.Server | None]:
    """The server of this worker; None where the stores of the tests are SQLite files."""
    if request.config.getoption("--database") == "sqlite":
        yield None
        return
    binaries = postgres.find_binaries()
    if binaries is None:
        absent = "PostgreSQL is not installed: make test-services"
        pytest.fail(absent) if "CI" in os.environ else pytest.skip(absent)
    server = postgres.Server(binaries)
    server.dump_tables()
    yield server
    server.stop()


@pytest.fixture
def place_of(postgres_server: postgres.Server | None) -> Iterator[postgres.Places]:
    """Where a store is that a home has as a file. A test that opens its stores there runs on each database."""
    places = postgres.Places(postgres_server)
    yield places
    places.forget()


@pytest.fixture
def shared_url(place_of: postgres.Places, tmp_path: Path) -> str:
    """A database that several machines share; without a server the test is skipped, and runs with the others there."""
    place = place_of(tmp_path / "shared")
    return place if isinstance(place, str) else pytest.skip("several machines share a server: --database postgres")


@pytest.fixture
def home() -> Iterator[Home]:
    """A made home, at a path short enough for sockets."""
    with import_module("tests.support.machines").new_home() as made:
        yield made


@pytest.fixture(autouse=True)
def no_options_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one command line said of its home and times holds for no later one in the same process."""
    monkeypatch.setattr(console, "_common", console._Common())


@pytest.fixture(autouse=True)
def no_process_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program in this process neither lowers the priority of all tests behind it nor names their connections."""
    monkeypatch.setattr(os, "nice", lambda _by: 0)
    monkeypatch.setenv("PGAPPNAME", "")
    monkeypatch.delenv("PGAPPNAME")


@pytest.fixture(autouse=True)
def no_process_is_left_bounded() -> Iterator[None]:
    """A program that runs in this process and bounds it would bound all tests behind it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield
    assert resource.getrlimit(resource.RLIMIT_FSIZE) == before, "give such a program a process of its own"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()
