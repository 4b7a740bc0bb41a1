"""Chat: conversations with the agent in a terminal."""

from turnkeeper.config.surfaces import Later, Panel, Surface

SURFACE = Surface(
    name="chat",
    place=10,
    offers={
        "fields in words": "agent_runtime.cli.chat.texts:fields_text",
        "answer and values": "agent_runtime.cli.chat.texts:answer_and_values",
    },
    commands={
        "send": Later(
            "agent_runtime.cli.chat.conversation:send", "Send a message into a channel's conversation.", Panel.TALK
        ),
        "triage": Later(
            "agent_runtime.cli.chat.answer:triage",
            "Go through the items that wait for you, one by one: questions, tool calls, proposals and contradictions.",
            Panel.TALK,
        ),
        "conversation": Later(
            "agent_runtime.cli.chat.conversation:app",
            "The conversation of each channel: the trigger and the outcome of each turn.",
            Panel.TALK,
        ),
    },
)
