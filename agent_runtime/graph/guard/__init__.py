"""The guard around every tool call: in scope it runs, else the author is asked, and nothing happens meanwhile.

Enforcement is here, in code, whatever a prompt says. `gate` decides about one call; `middleware` asks it for the calls
of our own agent, `hooks` for every other tool call of the process; `gate` also says what an approval is bound to.
"""

from agent_runtime.graph.guard.gate import Gate, LimitReached, shared_names
from agent_runtime.graph.guard.hooks import over_limit, watched, watching
from agent_runtime.graph.guard.middleware import Guard

__all__ = ["Gate", "Guard", "LimitReached", "over_limit", "shared_names", "watched", "watching"]
