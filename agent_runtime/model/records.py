"""Rows of the runtime's store as values: what queries return, and what the conversation and the wire are made from."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agent_runtime.model.values import Category, Said


@dataclass(frozen=True, kw_only=True)
class TurnRecord:
    """A turn: one row of the table. Names are those of the columns."""

    number: int
    turn_id: str
    thread_id: str
    channel: str
    agent: str
    category: str
    grant: Category
    trigger: str
    status: str
    visible: bool
    fire_id: str
    attempt: int
    task_id: str
    task_name: str
    kind: str
    prompt: str
    payload_json: str
    read_only: bool
    nominal_at: datetime | None
    due_at: datetime | None
    fired_at: datetime | None
    timezone: str
    catch_up: str
    stands_for: int
    first_nominal_at: datetime | None
    last_nominal_at: datetime | None
    started_at: datetime
    ended_at: datetime | None
    summary: str
    error: str
    answers: Mapping[str, Any]
    resumes: str
    after_message: str
    paused_until: datetime | None
    tries: int
    tokens_in: int
    tokens_out: int
    wake_after_s: int | None


@dataclass(frozen=True, kw_only=True)
class MessageRecord:
    """One message of a conversation.

    Attributes:
        turn_id: its turn.
        position: orders the messages of a turn.
        said: role, text and tool calls.
        at: when it was recorded.
    """

    turn_id: str
    position: int
    said: Said
    at: datetime


@dataclass(frozen=True, kw_only=True)
class InterruptRecord:
    """What an author was asked, and decided. Names are those of the columns; `task_name` and `category` its turn's."""

    interrupt_id: str
    turn_id: str
    thread_id: str
    channel: str
    kind: str
    tool: str
    args_json: str
    args_hash: str
    call_id: str
    missing_scope: str
    question: str
    allows_text: bool
    status: str
    decision: str
    message: str
    edited_json: str
    applied: bool
    created_at: datetime
    resolved_at: datetime | None
    task_name: str
    category: str


@dataclass(frozen=True, kw_only=True)
class EventRecord:
    """One turn event, numbered in commit order. Names are those of the columns."""

    sequence: int
    turn_id: str
    fire_id: str
    attempt: int
    thread_id: str
    trigger: str
    state: str
    at: datetime
    summary: str
    error: str
    held_by: tuple[str, ...]
    tokens_in: int
    tokens_out: int
    wake_after_s: int | None


@dataclass(frozen=True, kw_only=True)
class KeyRecord:
    """What a taken key became. Names are those of the columns."""

    key: str
    digest: str
    turn_id: str
    thread_id: str
    fire_id: str
    attempt: int
    became: str
    into: str
    at: datetime


@dataclass(frozen=True, kw_only=True)
class ChannelRecord:
    """A channel.

    Attributes:
        name: its name.
        turns: how many turns its conversation shows.
        waiting: how many decisions wait for the author.
        last_at: when its newest turn began.
    """

    name: str
    turns: int
    waiting: int
    last_at: datetime
