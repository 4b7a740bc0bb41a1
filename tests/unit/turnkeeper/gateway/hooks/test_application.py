"""The buttons of a page that decides one question."""

import json
import re

import pytest

from turnkeeper.gateway.hooks import application
from turnkeeper.v1 import agent_runtime_pb2 as agents

CALLS = {"form": "inbox", "calls": [{"tool": "send", "args": {}, "takes": ["approve", "edit", "respond"]}]}
IGNORABLE = {"form": "inbox", "calls": [{"tool": "send", "args": {}, "takes": ["reject", "edit", "respond"]}]}


@pytest.mark.parametrize(
    ("kind", "said", "values", "has_field"),
    [
        ("permission", {"text": "hi"}, ["approve", "reject"], False),
        ("question", {"value": "Which colour?"}, ["answer", "approve", "reject"], True),
        ("question", CALLS, ["approve", "answer"], True),
        ("question", IGNORABLE, ["reject", "answer"], True),
    ],
)
def test_the_main_button_of_a_link_is_the_first_way(
    kind: str, said: object, values: list[str], has_field: bool
) -> None:
    shown = application._buttons(agents.Interrupt(kind=kind, args_json=json.dumps(said)))
    assert re.findall(r"value=(\w+)>", shown) == values
    main = [value for value in values if value != "reject"][:1]
    assert re.findall(r"class=main name=decision value=(\w+)", shown) == main
    assert ("name=answer" in shown) is has_field
    assert ("name=reason" in shown) is ("Reject" in shown)


def test_a_rejection_asks_once_more_names_its_question_and_can_be_cancelled() -> None:
    asked = agents.Interrupt(kind="permission", args_json="{}", task_name="<news>", tool="send{0}")
    before, _, sheet = application._buttons(asked).partition("<details>")
    assert "value=reject" not in before
    assert "<p>Reject &lt;news&gt;: send{0}?</p>" in sheet
    assert re.search(r"href=''>Cancel</a>.*value=reject>.*</details>", sheet)


def test_a_question_in_a_form_of_its_own_is_answered_or_takes_yes_or_no() -> None:
    shown = application._buttons(agents.Interrupt(kind="question", args_json=json.dumps({"value": "Which colour?"})))
    assert re.findall(r">(\w+)</button>", shown) == ["Answer", "Yes", "No"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (None, "no longer exists"),
        (agents.Interrupt(status="resolved", decision="expired"), "expired without an answer"),
        (agents.Interrupt(status="void"), "ended with its turn, without a decision"),
        (agents.Interrupt(status="resolved", decision="reject"), "was decided at 1970-01-01 00:00 UTC: reject"),
    ],
)
def test_a_link_to_a_question_that_is_over_says_how_it_ended(asked: agents.Interrupt | None, said: str) -> None:
    assert said in application._ended(asked)
