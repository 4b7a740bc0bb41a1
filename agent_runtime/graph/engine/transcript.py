"""A graph's messages as the conversation keeps them."""

from collections.abc import Sequence

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, ToolMessage

from agent_runtime.model.values import Said, ToolUse

BESIDE = "turnkeeper_tokens"  # in the artifact of a subagent's report: tokens read and written


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


def tokens_of(messages: Sequence[BaseMessage]) -> tuple[int, int]:
    """Return the tokens that models read and wrote in these messages, where they tell; also those of subagents."""
    told = [message.usage_metadata for message in messages if isinstance(message, AIMessage) and message.usage_metadata]
    used = [(usage["input_tokens"], usage["output_tokens"]) for usage in told]
    used += [one for message in messages if isinstance(message, ToolMessage) and (one := _beside(message))]
    return sum(one for one, _ in used), sum(other for _, other in used)


def _beside(message: ToolMessage) -> tuple[int, int] | None:
    """Return what the subagent used whose report this is; None for any other answer."""
    found = message.artifact.get(BESIDE) if isinstance(message.artifact, dict) else None
    return (int(found[0]), int(found[1])) if found else None


def _line(message: AnyMessage) -> Said | None:
    if isinstance(message, AIMessage):
        calls = tuple(ToolUse(id=call["id"] or "", name=call["name"], args=call["args"]) for call in message.tool_calls)
        return Said(role="agent", text=str(message.text), tool_calls=calls)
    if isinstance(message, ToolMessage):
        return Said(role="tool", text=str(message.text), tool_call_id=message.tool_call_id)
    return None
