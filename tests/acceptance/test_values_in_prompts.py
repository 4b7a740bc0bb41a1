"""A prompt that changes each time: what a person types, and what the agent gets, also after `kill -9`."""

import pytest

from tests.support.constellation import Constellation
from turnkeeper.constellation.supervisor.daemons import AGENT_RUNTIME

pytestmark = pytest.mark.process


def prompts(constellation: Constellation) -> list[str]:
    """The prompts of the turns of the conversation, oldest first."""
    turns = constellation.conversation()
    return [next(one["text"] for one in turn["messages"] if one["role"] == "trigger") for turn in turns]


def answers(constellation: Constellation) -> list[str]:
    turns = constellation.conversation()
    return [[one["text"] for one in turn["messages"] if one["role"] == "agent"][-1] for turn in turns]


def test_the_last_answer_of_a_task_stands_in_its_next_prompt(constellation: Constellation) -> None:
    constellation.create("news", "--every", "1d", "--prompt", "Before: {{ last.answer }}")
    constellation.command("turnkeeper", "task", "run", "news", "--wait")
    constellation.command("turnkeeper", "task", "run", "news", "--wait")
    first, second = prompts(constellation)
    assert first == 'Before: ""'
    assert second.startswith('Before: "')
    assert answers(constellation)[0].split("\n")[0][:20] in second
    assert "last.answer" not in second


def test_a_turn_that_kill_9_breaks_off_has_the_same_prompt_when_it_is_tried_again(constellation: Constellation) -> None:
    constellation.create("news", "--every", "1d", "--prompt", "Before: {{ last.answer }}")
    constellation.command("turnkeeper", "task", "run", "news", "--wait")
    constellation.stop(AGENT_RUNTIME)
    constellation.start(AGENT_RUNTIME, TURNKEEPER_FAILPOINTS="runtime.finished")
    constellation.command("turnkeeper", "task", "run", "news")
    constellation.until_dead(AGENT_RUNTIME)
    constellation.start()
    constellation.until_outcome("news", "succeeded", 2)
    first, second = prompts(constellation)
    assert second.startswith('Before: "')
    assert second != first
    assert constellation.violations() == []


def test_a_person_sees_the_prompt_as_it_would_be_and_gives_values_for_one_run(constellation: Constellation) -> None:
    prompt = 'On {{ date }}: weather in {{ var.city or "Rome" }} after {{ last.answer }}'
    constellation.create("weather", "--every", "1d", "--tz", "UTC", "--prompt", prompt)
    shown = constellation.command("turnkeeper", "task", "show", "weather", "--rendered")
    day = constellation.ask("turnkeeper", "task", "show", "weather")["next_fire_at"][:10]
    assert shown == f'On {day}: weather in "Rome" after ""\n'
    constellation.command("turnkeeper", "task", "run", "weather", "--wait", "--var", "city=Oslo")
    assert 'weather in "Oslo"' in prompts(constellation)[0]
    again = constellation.ask("turnkeeper", "task", "show", "weather", "--rendered")["prompt"]
    assert answers(constellation)[0].split("\n")[0][:20] in again
    refused = constellation.attempt("turnkeeper", "task", "run", "weather", "--var", "town=Oslo")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "it has: city" in refused.stderr
    unknown = constellation.attempt("turnkeeper", "task", "edit", "weather", "--prompt", "{{ wether }}")
    assert unknown.returncode == 2
    assert "{{ wether }} is not a variable" in unknown.stderr
    assert constellation.ask("turnkeeper", "task", "show", "weather")["prompt"] == prompt
