"""Our own agent: its briefing, its memory as a LangGraph store, and the subagents that it starts."""
