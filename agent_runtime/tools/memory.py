"""The tools over memory. Each docstring below is what a model reads."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from agent_runtime.graph.tool_spec import ToolSpec
from agent_runtime.tools.call import Runtime, call_of, spec
from agent_runtime.workspace.memory.entries import Recollection
from agent_runtime.workspace.workspace import World

Tier = Annotated[
    Literal["conversation", "channel", "workspace", "account"],
    "conversation is this thread, channel is this channel, workspace and account are there once",
]
Channel = Annotated[str, "another channel, if the category reaches it; empty for the turn's own"]
Text = Annotated[str, "what to remember, at most 4,000 bytes"]
Key = Annotated[str, "the entry's key, as reading or searching gives it"]


def memory_tools(world: World) -> list[ToolSpec]:
    """Return the tools by which turns read and change memory."""
    return [*_reading(world), *_changing(world)]


def _reading(world: World) -> list[ToolSpec]:
    async def memory_read(
        tier: Tier,
        runtime: Runtime,
        channel: Channel = "",
        skip: Annotated[int, "pass over so many entries first, to read on where a reading ended"] = 0,
        order: Annotated[Literal["newest", "oldest"], "which come first"] = "newest",
    ) -> Mapping[str, Any]:
        """Read what earlier turns remembered, newest first."""
        found = await world.memory.read(call_of(runtime), tier, channel, skip=skip, oldest=order == "oldest")
        return {"tier": tier, **_given(found)}

    async def memory_search(
        tier: Tier,
        query: Annotated[str, "words to look for"],
        runtime: Runtime,
        limit: Annotated[int, "the most entries to give"] = 10,
        channel: Channel = "",
    ) -> Mapping[str, Any]:
        """Find entries of a memory tier by words. The best match comes first."""
        found = await world.memory.search(call_of(runtime), tier, query, channel, limit=limit)
        return {"tier": tier, **_given(found)}

    return [
        spec(memory_read, scope="memory.read", effect="read"),
        spec(memory_search, scope="memory.search", effect="read"),
    ]


def _changing(world: World) -> list[ToolSpec]:
    async def memory_put(
        tier: Tier,
        text: Text,
        runtime: Runtime,
        key: Annotated[str, "a name; putting the same name again replaces the text; empty makes a new entry"] = "",
        channel: Channel = "",
    ) -> Mapping[str, Any]:
        """Remember a short text for later turns."""
        return {**(await world.memory.put(call_of(runtime), tier=tier, text=text, key=key, channel=channel)).result}

    async def memory_update(
        tier: Tier, key: Key, text: Text, runtime: Runtime, channel: Channel = ""
    ) -> Mapping[str, Any]:
        """Change the text of an entry that is there."""
        return {**(await world.memory.update(call_of(runtime), tier=tier, key=key, text=text, channel=channel)).result}

    async def memory_forget(tier: Tier, key: Key, runtime: Runtime, channel: Channel = "") -> Mapping[str, Any]:
        """Delete an entry. What the author wrote stays."""
        return {**(await world.memory.forget(call_of(runtime), tier=tier, key=key, channel=channel)).result}

    return [
        spec(memory_put, scope="memory.put", effect="write"),
        spec(memory_update, scope="memory.update", effect="write"),
        spec(memory_forget, scope="memory.forget", effect="write"),
    ]


def _given(found: Recollection) -> dict[str, Any]:
    entries = [
        {"key": entry.key, "text": entry.text, "updated_at": entry.updated_at}
        | ({"by": "the author"} if entry.origin == "authored" else {})
        for entry in found.entries
    ]
    return {"entries": entries, "left_out": found.left_out}
