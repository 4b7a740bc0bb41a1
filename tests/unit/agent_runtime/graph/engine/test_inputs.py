"""A graph is given what its input's fields want; its output is shown in a line."""

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from pydantic import BaseModel, Field

from agent_runtime.graph.engine.inputs import LONGEST_OUTCOME, InputSchema, messages_of, read_schema, said_or_outcome
from agent_runtime.model.turn import Said
from turnkeeper.errors import InvalidInput


class Loose(TypedDict):
    topic: str
    notes: list[str]
    prompt: str | None


class Strict(TypedDict):
    topic: str
    at: datetime


class Model(BaseModel):
    topic: str
    depth: int = Field(3, ge=1)


@dataclass
class Plain:
    topic: str
    prompt: int = 0
    input: str = ""
    tags: list[str] = field(default_factory=list)


class Chat(TypedDict, total=False):
    chat: Annotated[list[AnyMessage], add_messages]


def schema(state: Any, given: Any = None) -> InputSchema:
    builder = StateGraph(state, input_schema=given)
    builder.add_node("only", lambda state: {})
    builder.add_edge(START, "only")
    return read_schema(builder.compile())


@pytest.mark.parametrize(
    ("shape", "payload", "given"),
    [
        (schema(Loose), "", {"prompt": "go"}),
        (schema(Loose), '{"prompt": "mine", "notes": ["a"]}', {"prompt": "mine", "notes": ["a"]}),
        (schema(Model), '{"topic": "x"}', {"topic": "x"}),
        (schema(Plain), '{"topic": "x"}', {"topic": "x", "input": "go"}),
        (schema(Loose, Strict), '{"topic": "x", "at": "2026-11-20T09:00:00Z"}', None),
        (schema(Chat), '{"chat": [{"role": "user", "content": "hi"}]}', None),
    ],
)
def test_a_payload_that_fits_is_the_input(shape: InputSchema, payload: str, given: dict[str, Any] | None) -> None:
    assert shape.payload("go", payload) == (json.loads(payload) if given is None else given)


@pytest.mark.parametrize(
    ("shape", "payload", "said"),
    [
        (schema(Loose), '{"topc": "x"}', "no field 'topc'; its fields are topic, notes, prompt"),
        (schema(Loose), '{"notes": [1]}', "notes: input should be a valid string"),
        (schema(Loose, Strict), '{"topic": "x"}', "lacks 'at'; its fields are topic (required), at (required)"),
        (schema(Loose, Strict), '{"topic": "x", "at": "soon"}', "at: "),
        (schema(Model), "", "lacks 'topic'"),
        (schema(Model), '{"topic": "x", "depth": 0}', "depth: Input should be greater than or equal to 1"),
        (schema(Plain), '{"topic": 1}', "topic: input should be a valid string"),
    ],
)
def test_a_payload_that_does_not_fit_is_refused_by_its_field(shape: InputSchema, payload: str, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        shape.payload("go", payload)
    assert said in str(refused.value)
    assert refused.value.where == "payload"


def test_the_prompt_goes_to_the_messages_else_to_a_field_of_text() -> None:
    shapes = (schema(MessagesState), schema(Loose), schema(Plain), schema(Model))
    assert [shape.prompt_field for shape in shapes] == ["messages", "prompt", "input", ""]


def test_an_input_has_a_json_schema_whatever_its_types() -> None:
    found = schema(Plain).json_schema()
    assert found["required"] == ["topic"]
    assert found["properties"]["tags"] == {"items": {"type": "string"}, "type": "array"}
    assert schema(Chat).json_schema()["properties"] == {"chat": {}}


def test_an_outcome_is_one_whole_line_of_what_is_there() -> None:
    shape = schema(Loose)
    assert shape.outcome({"topic": "x", "notes": [], "prompt": None}) == '{"topic": "x"}'
    assert shape.outcome({"topic": Model(topic="y")}) == '{"topic": {"topic": "y", "depth": 3}}'
    assert shape.outcome({"topic": {(1, 2): 3}}) == "{'topic': {(1, 2): 3}}"
    assert shape.outcome({}) == ""
    long = {"topic": "x" * 6_000, "notes": ["y" * 6_000]}
    assert json.loads(shape.outcome(long)) == long


def test_the_fields_of_an_outcome_that_is_too_long_are_cut_and_its_json_stays_valid() -> None:
    told = json.loads(schema(Loose).outcome({"topic": "x" * LONGEST_OUTCOME, "notes": ["first"]}))
    assert told["topic"].endswith("x…")
    assert len(told["topic"]) == LONGEST_OUTCOME // 2
    assert "first" in told["notes"]


def test_a_prompt_that_is_not_read_names_the_command_that_gives_the_fields() -> None:
    shape = schema(TypedDict("Topics", {"topic": str}, total=False))
    assert "its fields are topic; give them: turnkeeper task edit NAME --input" in shape.unread("dig", "", "")
    assert shape.unread("dig", "", '{"topic": "x"}').endswith("omit it: --prompt ''")


def test_an_outcome_is_said_where_no_message_was() -> None:
    assert said_or_outcome([], "{}") == (Said(role="agent", text="{}"),)
    assert [line.text for line in said_or_outcome([AIMessage("done")], "{}")] == ["done"]
    assert said_or_outcome([], "") == ()


def test_messages_are_found_in_any_form_of_state() -> None:
    class State(BaseModel):
        messages: list[Any]

    line = AIMessage("x")
    assert messages_of({"messages": [line]}) == messages_of(State(messages=[line])) == [line]
    assert messages_of({"messages": "none"}) == messages_of(None) == []
