"""A graph whose state has messages and fields of its own: what people and programs read of its results."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.runtime.test_reports_of_a_graph import SURVEY
from tests.support.langgraph import Lg
from tests.support.machines import constellation_on, new_home
from tests.support.postgres import Server
from tests.support.web import configure, serving

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def lg(tmp_path_factory: pytest.TempPathFactory, postgres_server: Server | None) -> Iterator[Lg]:
    file = tmp_path_factory.mktemp("graph") / "survey.py"
    file.write_text(SURVEY)
    graph = f"[agents.agent0]\ngraph = {json.dumps(f'{Path(file)}:graph')}\n"
    with new_home() as home, constellation_on(postgres_server, home) as constellation:
        for each in constellation.homes:
            configure(each, graph)
        constellation.start()
        with serving(home, graph) as web:
            made = Lg(constellation, web)
            yield made
            made.http.close()


def test_programs_read_the_answer_and_the_fields_of_a_run(lg: Lg) -> None:
    lg.cron(lg.thread(), input={"messages": [{"role": "user", "content": "talk"}]}, metadata={"name": "talk"})
    done = json.loads(lg.constellation.command("task-runner", "run", "talk", "--wait", "-o", "json"))
    assert done["answer"] == "The survey is done."
    assert done["values"] == {"sources": ["pond"], "report": "about 1 source"}
    told = lg.constellation.command("task-runner", "run", "talk", "--wait")
    assert "The survey is done.\n\nsources:\n  - pond\nreport: about 1 source" in told
    shown = lg.constellation.command("agent-runtime", "conversation", "show", "general")
    assert "report: about 1 source" in shown
    lg.web.log_in()
    page = lg.web.ask(f"/ui/turns/{done['turn_id']}", cookie=lg.web.cookie).body
    assert '<details class="fold"><summary>Fields, 3 lines</summary>' in page
    assert '<p class="who">values</p>' not in page


def test_a_result_of_fields_is_the_answer_and_also_values(lg: Lg) -> None:
    lg.cron(lg.thread(), input={"messages": [{"role": "user", "content": "quiet"}]}, metadata={"name": "quiet"})
    done = json.loads(lg.constellation.command("task-runner", "run", "quiet", "--wait", "-o", "json"))
    assert json.loads(done["answer"]) == done["values"] == {"sources": ["pond"], "report": "about 1 source"}


def test_a_cron_needs_no_messages(lg: Lg) -> None:
    lg.cron(lg.thread(), input={"topic": "roofs"}, metadata={"name": "roofs"})
    spec = json.loads(lg.constellation.command("task-runner", "show", "roofs", "-o", "json"))
    assert spec["input"] == {"topic": "roofs"}


def test_a_repeated_grant_says_that_the_runtime_does_not_know_it_yet(lg: Lg) -> None:
    given = ("agent-runtime", "categories", "grant", "conversation", "--autonomous")
    restart = "agent-runtime reads config.toml when it starts: turnkeeper up --restart"
    assert restart in lg.constellation.attempt(*given).stderr
    again = lg.constellation.attempt(*given).stderr
    assert "all of this is already granted" in again
    assert restart in again
