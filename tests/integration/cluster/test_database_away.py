"""The database does not answer: pages, metrics and commands say so, and continue when it is back."""

import re
from collections.abc import Iterator

import psycopg
import pytest

from tests.acceptance.test_metrics import samples
from tests.support.constellation import AGENT_RUNTIME, TASK_RUNNER, Constellation, Daemon
from tests.support.postgres import Server, find_binaries
from tests.support.web import Web, serving
from turnkeeper.config.home import Home
from turnkeeper.config.settings import load_settings
from turnkeeper.constellation.supervisor.daemons import DAEMONS, SUPERVISOR, process_of
from turnkeeper.errors import EXIT_FAILURE, EXIT_UNREACHABLE

pytestmark = pytest.mark.process
AWAY = re.compile("<strong>(?:task-runner|agent-runtime)</strong> (?:cannot use its store|has not answered) since")
PAGES = ("/ui/", "/ui/tasks", "/ui/machines", "/ui/decisions", "/ui/timeline", "/ui/tokens", "/ui/conversations")


@pytest.fixture
def server(postgres_server: Server | None) -> Iterator[Server]:
    binaries = find_binaries()
    if postgres_server is None or binaries is None:
        pytest.skip("a server that stops: --database postgres")
    made = Server(binaries)
    yield made
    made.stop()


@pytest.fixture
def machine(home: Home, server: Server) -> Iterator[Constellation]:
    made = Constellation(home)
    home.config.write_text(f'[store]\nurl = "{server.create()}"\n[node]\nname = "cellar"\n')
    made.start()
    yield made
    made.stop()


@pytest.fixture
def web(machine: Constellation) -> Iterator[Web]:
    with serving(machine.home) as made:
        made.log_in()
        yield made


def test_pages_metrics_and_commands_say_that_the_database_is_away_and_continue_when_it_is_back(
    machine: Constellation, server: Server, web: Web
) -> None:
    def shown(path: str) -> str:
        answer = web.ask(path, cookie=web.cookie)
        assert answer.status == 200, answer
        return answer.body

    machine.create("water", "--in", "9h")
    for path in PAGES:
        assert not AWAY.findall(shown(path))
    server.pause()
    for path in PAGES:  # an answer may be a second old
        machine.until(f"{path} to name both", lambda path=path: len(AWAY.findall(shown(path))) == 2)
        page = shown(path)
        assert page.count(">is away<") == 2
        assert "water" in page or path not in {"/ui/", "/ui/tasks"}, "the last answer stays"
    for daemon in (TASK_RUNNER, AGENT_RUNTIME):
        found = machine.until("its metrics", lambda daemon=daemon: blocked(machine, daemon))
        assert found["scrape_complete",] == 0
    assert {("runtime_connected",), ("machines_lost",)} <= blocked(machine, TASK_RUNNER).keys()
    asked = "select count(*) from turns"
    for argv in (
        ("task-runner", "list"),
        ("task-runner", "run", "water"),
        ("agent-runtime", "approvals", "list"),
        ("agent-runtime", "turns", "list"),
        ("turnkeeper", "query", asked),
    ):
        done = machine.attempt(*argv)
        assert done.returncode == EXIT_UNREACHABLE, (argv, done.stderr)
    server.resume()
    machine.start()  # a daemon may have ended, as its supervisor expects
    machine.until("it to be back", lambda: not AWAY.findall(shown("/ui/")))


def test_up_restart_stops_nothing_if_the_database_of_the_settings_does_not_answer(machine: Constellation) -> None:
    home = machine.home
    machine.stop()
    machine.command("turnkeeper", "up")
    before = {daemon.name: process_of(home, daemon) for daemon in (*DAEMONS, SUPERVISOR)}
    settings = home.config.read_text()
    home.config.write_text(settings.replace("host=", "host=%2Fnowhere"))
    for argv, code in ((("up", "--restart"), EXIT_UNREACHABLE), (("restart",), EXIT_FAILURE)):
        done = machine.attempt("turnkeeper", *argv)
        assert done.returncode == code, done.stderr
        assert "No such file or directory" in done.stderr
    assert {daemon.name: process_of(home, daemon) for daemon in (*DAEMONS, SUPERVISOR)} == before
    home.config.write_text(settings)


def test_today_names_a_machine_that_is_lost(machine: Constellation, web: Web) -> None:
    with psycopg.connect(load_settings(machine.home).store.url, autocommit=True) as database:
        database.execute(
            "INSERT INTO runner.nodes (node_id, name, role, host, version, started_us, beat_us, offset_us) SELECT 'x',"
            " 'garage', role, 'other', version, started_us, beat_us - 42000000, 0 FROM runner.nodes LIMIT 1"
        )
    today = web.ask("/ui/", cookie=web.cookie).body
    assert "Not seen lately: 1 machine, garage." in today
    assert "<b>1</b> went wrong since yesterday" in today


def blocked(machine: Constellation, daemon: Daemon) -> dict[tuple[str, ...], float]:
    """Return the metrics of a daemon that says that its store is in trouble. Empty if it does not say so."""
    found = samples(machine, daemon)
    return found if found["machine_trouble",] == 1 else {}
