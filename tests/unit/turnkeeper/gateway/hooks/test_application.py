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
