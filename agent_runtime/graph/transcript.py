"""A graph's messages as the conversation keeps them."""

from collections.abc import Sequence

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage

from agent_runtime.model import Said, ToolUse


def after(messages: Sequence[AnyMessage], mark: str) -> Sequence[AnyMessage] | None:
    """Return the messages after the one with id `mark`; all for an empty mark; None where it is no longer there."""
    if not mark:
        return messages
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].id == mark:
            return messages[index + 1 :]
    return None


def said(messages: Sequence[AnyMessage]) -> tuple[Said, ...]:
    """Return what agents and tools said, in order."""
    return tuple(line for line in map(_line, messages) if line is not None)


def tokens_of(messages: Sequence[AnyMessage]) -> tuple[int, int]:
    """Return the tokens that models read and wrote in these messages, where they tell."""
    told = [message.usage_metadata for message in messages if isinstance(message, AIMessage) and message.usage_metadata]
    return sum(usage["input_tokens"] for usage in told), sum(usage["output_tokens"] for usage in told)


def _line(message: AnyMessage) -> Said | None:
    if isinstance(message, AIMessage):
        calls = tuple(ToolUse(id=call["id"] or "", name=call["name"], args=call["args"]) for call in message.tool_calls)
        return Said(role="agent", text=str(message.text), tool_calls=calls)
    if isinstance(message, ToolMessage):
        return Said(role="tool", text=str(message.text), tool_call_id=message.tool_call_id)
    return None
