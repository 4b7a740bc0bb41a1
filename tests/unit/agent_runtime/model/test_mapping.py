"""Values, the wire, JSON and the store name the fields of one thing alike, or say where they differ."""

from dataclasses import fields
from typing import Any

import pytest
from sqlalchemy import Table

from agent_runtime.graph.engine.model_output import OutputPiece, RunningCall
from agent_runtime.model.graphs import Entry
from agent_runtime.model.mapping import JSON_KEYS, RENAMED, shared_fields
from agent_runtime.model.trigger import TriggerHeader
from agent_runtime.model.turn import (
    Category,
    ChannelRecord,
    DetailedEvent,
    EventRecord,
    InterruptRecord,
    KeyRecord,
    Said,
    TurnRecord,
)
from agent_runtime.store.mail import TerminalDelivery
from agent_runtime.store.schema import attachments, candidates, deviations, memory, pages, revalidations
from agent_runtime.store.turn_events import BridgedRecord
from agent_runtime.workspace.deviations import Deviation
from agent_runtime.workspace.model import Candidate, MemoryEntry, Page
from agent_runtime.workspace.pages import Attachment
from agent_runtime.workspace.revalidation import Item
from turnkeeper.v1 import agent_runtime_pb2 as wire

PROGRESS = {"state", "sequence", "cancel_requested", "wake_after_s"}
NO_TURN = {
    "category",
    "started_at",
    "ended_at",
    "summary",
    "error",
    "status",
    "trigger",
    "models_json",
    "tokens_in",
    "tokens_out",
    "graph",
    "via",
    "task_id",
    "run_json",
}
OF_TRIGGER = {"category", "graph", "run_json"}
DESCRIBED = {"metadata_json", "created_at", "updated_at"}
LEFT_OUT = {  # fields of a message that its JSON leaves out
    "Attachment": {"data"},
    "ConversationTurn": {"speech", "number", "cursor"},
    "Page": {"queued"},
    "TriggerMark": {"first_nominal_at", "last_nominal_at", "timezone"},
    "Thread": {"run_json"},
    "Turn": {"state", "sequence", "wake_after_s", "run_json", "fired_at"},
}
DETAILS = {"channel", "task_id", "task_name", "category", "via"}


@pytest.mark.parametrize("message", JSON_KEYS)
def test_every_field_of_a_message_is_in_its_json_or_left_out_by_name(message: str) -> None:
    printed = {RENAMED.get((message, key), key) for key in JSON_KEYS[message]}
    left_out = LEFT_OUT.get(message, set())
    assert not printed & left_out
    assert printed | left_out == set(getattr(wire, message).DESCRIPTOR.fields_by_name)


@pytest.mark.parametrize(
    ("message", "value", "given"),
    [
        (wire.Attachment, Attachment, {"data"}),
        (wire.BridgedEvent, BridgedRecord, {"incarnation"}),
        (wire.Candidate, Candidate, set()),
        (wire.Category, Category, {"source", "overrides_shipped", "problem"}),
        (wire.Channel, ChannelRecord, {"proposed", "deviations"}),
        (wire.ConversationTurn, TurnRecord, {"messages", "interrupts", "candidates", "deviations", "speech", "cursor"}),
        (wire.Deviation, Deviation, set()),
        (wire.Graph, Entry, set()),
        (wire.Interrupt, InterruptRecord, set()),
        (wire.MemoryEntry, MemoryEntry, {"namespace", "item_key"}),
        (wire.Message, Said, {"at"}),
        (wire.Page, Page, {"sources", "attachments", "queued"}),
        (wire.RevalidationItem, Item, set()),
        (wire.RunningCall, RunningCall, set()),
        (wire.Speech, OutputPiece, set()),
        (wire.Thread, TurnRecord, {"turns", "waiting", "first_at", "last_at", "last_turn_id"} | DESCRIBED),
        (wire.TriggerMark, TurnRecord, {"task"}),
        (wire.Turn, TurnRecord, PROGRESS - {"wake_after_s"}),
        (wire.Turn, KeyRecord, PROGRESS | NO_TURN | {"channel", "agent", "task_name", "fired_at"}),
        (wire.Turn, TerminalDelivery, (PROGRESS - {"state"} | NO_TURN) - OF_TRIGGER),
        (wire.Turn, TriggerHeader, (PROGRESS | NO_TURN) - OF_TRIGGER),
        (wire.TurnEvent, EventRecord, {"incarnation", "about"} | DETAILS),
        (wire.TurnEvent, DetailedEvent, {"incarnation", "about"}),
    ],
)
def test_a_message_takes_from_a_value_all_but_what_its_caller_gives(message: Any, value: Any, given: set[str]) -> None:
    assert set(message.DESCRIPTOR.fields_by_name) - set(shared_fields(message, value)) == given


@pytest.mark.parametrize(
    ("value", "table", "given"),
    [
        (Attachment, attachments, set()),
        (Candidate, candidates, {"sources"}),
        (Deviation, deviations, set()),
        (Item, revalidations, {"item_id"}),
        (MemoryEntry, memory, set()),
        (Page, pages, set()),
    ],
)
def test_a_value_has_a_column_for_each_of_its_fields(value: Any, table: Table, given: set[str]) -> None:
    columns = {column.name.removesuffix("_us") for column in table.columns}
    assert {field.name for field in fields(value)} - columns == given
