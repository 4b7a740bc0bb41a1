"""A chat model of three rules, so that the project runs without a key: check the beds, water the driest one, report."""

import json
from collections.abc import Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult

DRY = 30


class Rules(BaseChatModel):
    """A model that calls `read_beds`, then `open_valve` for a bed that is too dry, then reports the result."""

    @property
    def _llm_type(self) -> str:
        return "rules"

    def bind_tools(self, tools: Sequence[Any], **_kwargs: Any) -> "Rules":
        """Return the model itself, because its rules know the tools by name."""
        del tools
        return self

    def _generate(self, messages: list[BaseMessage], *_args: Any, **_kwargs: Any) -> ChatResult:
        begun = max(at for at, message in enumerate(messages) if isinstance(message, HumanMessage))
        results = [message for message in messages[begun:] if isinstance(message, ToolMessage)]
        return ChatResult(generations=[ChatGeneration(message=_next(results))])


def _next(results: Sequence[ToolMessage]) -> AIMessage:
    if not results:
        return AIMessage("", tool_calls=[{"name": "read_beds", "args": {}, "id": "look"}])
    beds = json.loads(str(results[0].content))
    bed = min(beds, key=beds.__getitem__)
    if beds[bed] >= DRY:
        return AIMessage(f"Every bed is moist enough; the driest is {bed} at {beds[bed]} %.")
    if len(results) == 1:
        wanted = {"bed": bed, "minutes": DRY - beds[bed]}
        return AIMessage("", tool_calls=[{"name": "open_valve", "args": wanted, "id": "water"}])
    return AIMessage(f"The {bed} were at {beds[bed]} %. Result: {results[-1].content}.")
