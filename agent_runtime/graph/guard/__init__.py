"""The guard around every tool call: in scope it runs, else the author is asked, and nothing happens meanwhile.

Enforcement is here, in code, whatever a prompt says. `gate` decides about one call; `middleware` puts it around the
calls of our own agent; `hooks` puts it around every other tool call that is made in the process, whoever makes it.
"""

from agent_runtime.graph.guard.gate import Gate, Judge, LimitReached, Narrow, Spec
from agent_runtime.graph.guard.hooks import watched, watching
from agent_runtime.graph.guard.middleware import Guard, guard_middleware

__all__ = ["Gate", "Guard", "Judge", "LimitReached", "Narrow", "Spec", "guard_middleware", "watched", "watching"]
