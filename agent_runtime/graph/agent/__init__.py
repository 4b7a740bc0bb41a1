"""Our own agent: its briefing, its memory as a LangGraph store, and its subagents."""
