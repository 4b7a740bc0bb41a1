"""Reports of an author's graph while it runs: its custom events, and the messages and state of its subgraphs.

Reports are for readers who follow the conversation. They are never written to disk, because messages and output are
stored with the turn. This module also finds the values that the nodes of a turn returned.
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from langgraph.types import StateSnapshot

from agent_runtime.graph.checkpointer.saver import GroupedSaver
from agent_runtime.graph.engine import inputs, model_output
from agent_runtime.model.turn import VALUES, Said, TurnContext
from turnkeeper.errors import InvalidInput

WAKE = "wake_after_s"  # in a custom event: when the graph wants to be woken
LONGEST_WAKE_S = 31 * 86_400


class Reports:
    """Reporter of a graph's stream in one interval of a turn, while a reader follows the turn's channel."""

    def __init__(self, live: model_output.LiveOutput | None, turn: TurnContext, said: model_output.Count) -> None:
        self._live = live
        self._turn = turn
        self._said = said
        self._known: dict[str, Mapping[str, Any]] = {}  # by subgraph: its last reported state
        self._messages: set[str] = set()

    def take(self, part: Mapping[str, Any]) -> None:
        """Report a part of the graph's stream."""
        if self._live is None or not self._live.followed(self._turn.channel):
            return
        source = "/".join(place.split(":")[0] for place in part["ns"])
        told = (
            _event(part["data"]) if part["type"] == "custom" else self._of_subgraph("|".join(part["ns"]), part["data"])
        )
        turn = self._turn
        for text in told:
            self._live.report(
                turn.turn_id, turn.thread_id, turn.channel, after=self._said() or 0, source=source, text=text
            )

    @staticmethod
    def wake(event: Any, known: int | None) -> int | None:
        """Return the requested wake-up after a custom event of a graph; the newest request counts.

        >>> Reports.wake({"wake_after_s": 90.2}, 5), Reports.wake({"progress": 1}, 5)
        (91, 5)

        Raises:
            InvalidInput: the wake-up time is in the past or more than a month away.
        """
        if not isinstance(event, Mapping) or WAKE not in event:
            return known
        asked: Any = event[WAKE]
        number = isinstance(asked, int | float) and not isinstance(asked, bool) and math.isfinite(asked)
        if not number or not 0 <= asked <= LONGEST_WAKE_S:
            what = f"the graph asked to be woken after {asked!r:.80}"
            raise InvalidInput(what, where=WAKE, hint=f"give a number of seconds from 0 to {LONGEST_WAKE_S}")
        wake_after_s: int = math.ceil(asked)
        return wake_after_s

    def _of_subgraph(self, place: str, values: Any) -> Iterator[str]:
        """Yield the new messages and fields of a subgraph since the last call, without its input."""
        first, known = place not in self._known, self._known.get(place, {})
        fields = values if isinstance(values, Mapping) else getattr(values, "__dict__", {})
        # Use JSON, because some values, such as arrays, cannot be compared directly.
        told = {key: inputs.as_json(value) for key, value in fields.items() if key != inputs.MESSAGES}
        self._known[place] = told
        for message in inputs.messages_of(values):
            name = str(message.id or id(message))
            if name not in self._messages and not first:
                yield from _line(message)
            self._messages.add(name)
        changed = {key: value for key, value in told.items() if known.get(key) != value}
        if changed and not first:
            yield json.dumps(changed, ensure_ascii=False)


def _event(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif not (isinstance(data, Mapping) and set(data) == {WAKE}):
        yield json.dumps(inputs.as_json(data), ensure_ascii=False)


def _line(message: Any) -> Iterator[str]:
    """Yield the text of an agent's or a tool's message, and each call as its name and arguments."""
    for line in inputs.said([message]):
        if line.text.strip():
            yield line.text
        yield from (
            f"→ {call.name}({json.dumps(call.args, ensure_ascii=False, default=str)})" for call in line.tool_calls
        )


async def returned(
    saver: GroupedSaver, end: StateSnapshot, schema: inputs.InputSchema, *, told: bool
) -> tuple[Said | None, str]:
    """Return a line for what a turn's nodes returned, and its kind, as `Ended.returned` has them.

    `told` is True if the turn's messages have a text.
    """
    at = {"thread_id": end.config["configurable"]["thread_id"], "checkpoint_ns": ""}
    of_turn = {"turn_id": (end.metadata or {}).get("turn_id", "")}
    steps = [one async for one in saver.alist({"configurable": at}, filter=of_turn)]
    begin = next((one for one in reversed(steps) if one.metadata.get("source") in {"fork", "loop"}), None)
    if begin is None:
        return None, ""
    before, after = (one.checkpoint["channel_versions"] for one in (begin, steps[0]))
    values = {name: value for name, value in end.values.items() if after.get(name) != before.get(name)}
    known = {one.id for one in inputs.messages_of(begin.checkpoint["channel_values"]) if one.id}
    fresh = inputs.said([one for one in inputs.messages_of(values) if one.id is None or one.id not in known])
    texts = [line.text for line in fresh if line.role == "agent" and line.text.strip() and not line.tool_calls]
    if texts and not told:
        return Said(role="agent", text="\n\n".join(texts)), "message"
    is_below = bool(texts) or (told and inputs.STRUCTURED in values)
    shown = {name: value for name, value in values.items() if not told or name != inputs.STRUCTURED}
    if not (text := schema.outcome(shown)):
        return None, ""
    below = Said(role="tool", text=text, tool_call_id=VALUES)
    return (below, "values") if is_below else (Said(role="agent", text=text), "answer")
