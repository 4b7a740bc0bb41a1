"""Names, ids and the stored form of a definition."""

from datetime import timedelta

import pytest

from task_runner.model.task import CatchUp, FireKind, Overlap, check_name, check_request_id
from task_runner.store.rows import decode_definition, encode_definition
from tests.unit.task_runner.simulated import at, definition
from turnkeeper.bus import envelope
from turnkeeper.errors import InvalidInput


@pytest.mark.parametrize("name", ["a", "0", "nightly-tidy", "x" * 63, "task-0123abc", "task-0123ABCD".lower() + "0"])
def test_names(name) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "-a",
        "A",
        "a_b",
        "a b",
        "a\n",
        "../x",
        "/x",
        "x" * 64,
        "\u0661",
        "a\0",
        "task-0123abcd",
        "loop-0123abcd",
        "é",
    ],
)
def test_what_is_no_name(name) -> None:
    with pytest.raises(InvalidInput) as error:
        check_name(name)
    assert error.value.where == "name"


def test_a_task_may_be_named_like_its_own_id() -> None:
    assert check_name("task-0123abcd", own_id="task-0123abcd")


@pytest.mark.parametrize("request_id", ["", "a b", "-x", "x" * 65, "a~b", "a\n"])
def test_what_is_no_request_id(request_id) -> None:
    with pytest.raises(InvalidInput):
        check_request_id(request_id)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"catch_up": CatchUp.RUN_ALL, "overlap": Overlap.QUEUE, "max_fires": 3, "read_only": True},
        {"catch_up_window": timedelta(hours=2), "start_at": at(0), "end_at": at(9), "expires_at": at(99)},
        {"tags": (("a", "1"), ("b", "2")), "payload_json": '{"x":1}', "prompt": "naïve\n\u202e"},
    ],
)
def test_a_definition_survives_the_store(changes) -> None:
    made = definition(**changes)
    assert decode_definition(encode_definition(made)) == made


def test_the_runtime_takes_every_kind_of_fire_and_policy_that_there_is() -> None:
    assert {kind.value for kind in FireKind} == envelope.FIRE_KINDS
    assert {policy.value for policy in CatchUp} == envelope.CATCH_UP_POLICIES
