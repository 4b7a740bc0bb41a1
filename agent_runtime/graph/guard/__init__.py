"""The guard around every tool call: a call in scope runs; otherwise the author is asked before anything happens.

Code enforces this, regardless of any prompt. `gate` decides about one call, and binds an approval to it. `middleware`
asks the gate for the calls of our own agent, `hooks` for every other tool call of the process.
"""

from agent_runtime.graph.guard.gate import Gate, LimitReached, shared_names
from agent_runtime.graph.guard.hooks import ToolEvents, over_limit, watched, watching
from agent_runtime.graph.guard.middleware import Guard

__all__ = ["Gate", "Guard", "LimitReached", "ToolEvents", "over_limit", "shared_names", "watched", "watching"]
