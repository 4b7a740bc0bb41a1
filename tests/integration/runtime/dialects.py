"""What tests of a graph's own interrupts share: the answers, LangChain's agent with its middleware, one question."""

import inspect
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.tools import BaseTool

from tests.integration.runtime.attacks import Field, _noted
from tests.integration.runtime.harness import STATES
from tests.support.scripted import ScriptedModel, calls
from turnkeeper.v1 import agent_runtime_pb2 as wire

Way = tuple[str, dict[str, Any]]
APPROVE: Way = ("approve", {})
REJECT: Way = ("reject", {"message": "not today"})
EDIT: Way = ("edit", {"args_json": '{"text": "better"}'})
RESPOND: Way = ("answer", {"message": "say it yourself"})
ASKED = calls(("send", {"text": "hi"}))


def json_answer(text: str) -> Way:
    return ("answer", {"args_json": text})


def agent(field: Field, *, mode: Any = "batched", allowed: Any = True, tools: list[BaseTool] | None = None) -> None:
    """Let the bench run LangChain's agent with its own middleware, as a project writes it."""
    gated = {"send": allowed if allowed is True else {"allowed_decisions": allowed}}
    modes = (
        {"interrupt_mode": mode} if "interrupt_mode" in inspect.signature(HumanInTheLoopMiddleware).parameters else {}
    )
    if not modes and mode != "batched":
        pytest.skip("this LangChain asks about all calls of a message at once: 1.4 and newer can ask about each")
    field.graph = lambda saver: create_agent(  # type: ignore[assignment,misc]
        ScriptedModel(script=field.script),
        tools or [_noted(field, "send")],
        middleware=[HumanInTheLoopMiddleware(gated, **modes)],
        checkpointer=saver,
    )


async def waiting(field: Field, form: Any, *scopes: str) -> tuple[wire.TurnEvent, wire.Interrupt]:
    """Fire a turn whose graph asks; return the event and the question."""
    form(field)
    await field.open()
    field.grant(*scopes)
    event = await field.act(ASKED, number=1)
    assert event.state == STATES.INTERRUPTED, event.error
    (question,) = await field.pending()
    return event, question


async def decide(field: Field, event: wire.TurnEvent, question: wire.Interrupt, way: Way) -> wire.TurnEvent:
    await field.resolve(question.interrupt_id, way[0], args_hash=question.args_hash, **way[1])
    return await field.stopped(event.turn_id, after=event.sequence)
