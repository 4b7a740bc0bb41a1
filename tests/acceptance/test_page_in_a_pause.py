"""The page while tasks are paused until a date, read without a browser."""

import pytest

from tests.support.constellation import Constellation
from tests.support.web import serving

pytestmark = pytest.mark.process


def test_today_the_list_and_the_task_say_how_long_the_pause_is_and_what_fires_after_it(
    constellation: Constellation,
) -> None:
    constellation.create("news", "--cron", "0 8 * * *", "--prompt", "p", "--tz", "UTC", "--budget", "turns_per_day=20")
    constellation.create("weekly", "--cron", "0 9 1 1 *", "--prompt", "p", "--tz", "UTC")
    constellation.create("mine", "--cron", "0 9 * * *", "--prompt", "p", "--tz", "UTC")
    constellation.command("task-runner", "pause", "mine")
    constellation.command("turnkeeper", "pause", "--until", "2099-06-15T10:00:00Z", "--note", "vacation")
    with serving(constellation.home) as web:
        web.log_in()
        paths = ("/ui/", "/ui/tasks", "/ui/tasks/news", "/ui/tasks/mine")
        today, tasks, news, mine = (" ".join(web.ask(path, cookie=web.cookie).body.split()) for path in paths)
    said = today.partition('id="next"')[2]
    assert "<b>2 tasks are paused until a date.</b>" in said
    assert "2099-06-16T08:00:00Z" in said.partition("</section>")[0]
    assert ">news</a>, paused until Monday 15 Jun 2099, 10:00 UTC." in said
    assert "No task fires by itself" not in today
    assert tasks.count("until Monday 15 Jun 2099, 10:00 UTC") == 2
    assert ("they are skipped" in news, "they are skipped" in mine) == (False, True)
    assert "<dt>budget, turns per day</dt><dd>20</dd>" in news


def test_the_list_of_approvals_names_the_proposals_that_wait(constellation: Constellation) -> None:
    assert "nothing waits for you" in constellation.attempt("turnkeeper", "approvals", "list").stderr
    constellation.create("news", "--in", "1s", "--prompt", "Summarise the day.")
    constellation.until_outcome("news", "succeeded")
    said = constellation.attempt("turnkeeper", "approvals", "list").stderr
    assert ("1 proposal: turnkeeper triage" in said, "nothing waits" in said) == (True, False)
    said = constellation.attempt("turnkeeper", "approvals", "list", "--channel", "elsewhere").stderr
    assert "nothing waits for you" in said
