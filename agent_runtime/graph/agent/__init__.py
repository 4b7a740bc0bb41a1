"""Our own agent: its briefing and its subagents."""
