"""A declared task fires, becomes a turn in its channel's conversation, and the author can go on from there."""

import pytest

from tests.support.constellation import Constellation
from tests.support.web import serving

pytestmark = pytest.mark.process


def test_a_fire_becomes_a_marked_turn_and_the_author_continues_on_its_thread(constellation: Constellation) -> None:
    constellation.create("digest", "--cron", "* * * * * *", "--prompt", "Summarise the garden.", "--max-fires", "1")
    (fire,) = constellation.until_outcome("digest", "succeeded")
    (turn,) = constellation.conversation()
    assert turn["trigger"]["task"] == "digest"
    assert turn["trigger"]["fire_id"] == fire["fire_id"]
    assert turn["turn_id"] == fire["turn_id"]
    assert turn["status"] == "succeeded"
    assert any(message["role"] == "agent" and message["text"] for message in turn["messages"])
    assert "triggered by digest at" in constellation.command("agent-runtime", "conversation", "show", "general")

    constellation.command("agent-runtime", "send", "general", "search: garden", "--wait")
    first, second = constellation.conversation()
    assert second["thread_id"] == first["thread_id"]
    assert second["trigger"] is None
    assert [message["text"] for message in second["messages"] if message["role"] == "author"] == ["search: garden"]
    assert constellation.violations() == []


def test_a_run_that_leaves_nothing_in_the_conversation_names_a_command_that_tells_of_it(
    constellation: Constellation,
) -> None:
    constellation.create("tidy", "--every", "1d", "--category", "memory-consolidation", "--channel", "quiet")
    done = constellation.attempt("task-runner", "run", "tidy", "--wait")
    assert done.returncode == 0, done.stderr
    assert "conversation show" not in done.stderr
    (program, *words) = done.stderr.split("it wrote no message; its actions: ")[1].splitlines()[0].split()
    assert "status:     silent" in constellation.command(program, *words)


def test_the_list_shows_what_people_look_for(constellation: Constellation) -> None:
    constellation.create("digest", "--every", "1s", "--max-fires", "2")
    constellation.until_outcome("digest", "succeeded", 2)
    header, row = constellation.command("task-runner", "list").splitlines()[:2]
    assert header.split() == (
        [
            "NAME",
            "SCHEDULE",
            "NEXT",
            "LEFT",
            "STATE",
            "MISSED",
            "LAST",
            "RESULT",
            "CATEGORY",
            "CHANNEL",
            "CATCH-UP",
            "FIRES",
        ]
    )
    assert row.startswith("digest")
    assert "succeeded" in row
    (task,) = constellation.ask("task-runner", "list")
    assert task["fires"] == 2
    assert task["state"] == "done"


def test_what_the_task_proposes_waits_for_the_author(constellation: Constellation) -> None:
    constellation.create("digest", "--in", "1s", "--prompt", "Summarise the garden.")
    constellation.until_outcome("digest", "succeeded")
    (candidate,) = constellation.ask("agent-runtime", "candidates", "list")
    assert (candidate["origin"], candidate["lifecycle"]) == ("agent-produced", "candidate")
    constellation.command("agent-runtime", "candidates", "accept", candidate["candidate_id"])
    assert constellation.ask("agent-runtime", "candidates", "list") == []


def test_cancel_stops_the_running_turn_and_enable_continues_on_the_same_thread(stopped: Constellation) -> None:
    stopped.start(TURNKEEPER_OFFLINE_DELAY_S="2")
    stopped.create("digest", "--every", "1s")
    stopped.until_outcome("digest", "running")
    stopped.command("task-runner", "cancel", "digest")
    (cancelled,) = stopped.until_outcome("digest", "cancelled")
    assert stopped.ask("task-runner", "show", "digest")["state"] == "disabled"
    stopped.stop()
    stopped.start()
    stopped.command("task-runner", "enable", "digest")
    stopped.until_outcome("digest", "succeeded")
    stopped.command("task-runner", "disable", "digest")
    turns = stopped.conversation()
    assert {turn["thread_id"] for turn in turns} == {turns[0]["thread_id"]}
    assert turns[0]["turn_id"] == cancelled["turn_id"]


def test_run_now_goes_the_same_way_and_moves_no_cursor(constellation: Constellation) -> None:
    before = constellation.create("yearly", "--cron", "0 0 1 1 *")
    said = constellation.command("task-runner", "run", "yearly", "--wait")
    assert "Written by the rule-based offline model" in said, "what the agent answered is printed"
    assert said.count("outcome: succeeded") == 1
    (entry,) = constellation.history("yearly")
    assert entry["kind"] == "manual"
    assert entry["outcome"] == "succeeded"
    after = constellation.ask("task-runner", "show", "yearly")
    assert after["next_fire_at"] == before["next_fire_at"]


@pytest.mark.sqlite_only("the file of a category lies in the home of the machine that is asked")
def test_a_conversation_says_what_a_held_task_waits_for_until_it_is_repaired(constellation: Constellation) -> None:
    file = constellation.home.categories / "catch-up-summary.toml"
    constellation.create("digest", "--in", "2s")
    file.write_text('nmae = "typo"\n')

    def noted() -> str:
        return constellation.attempt("turnkeeper", "conversation", "show", "general").stderr

    why = "task digest waits for the repair of this: category catch-up-summary cannot be used"
    constellation.until("a note", lambda: why in noted())
    with serving(constellation.home) as web:
        web.log_in()
        page = web.ask("/ui/conversations/general", cookie=web.cookie).body
    assert "waits for the repair of this: category catch-up-summary cannot be used" in page
    file.unlink()
    constellation.until_outcome("digest", "succeeded")
    assert "waits for" not in noted()
