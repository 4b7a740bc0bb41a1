"""The runtime's requests to the runner about tasks. Only this module and the tools for loops call the runner."""

from agent_runtime.permissions.exceptions import TaskNow
from turnkeeper.config.home import Home
from turnkeeper.rpc.callers import Identity
from turnkeeper.rpc.channel import AsyncCaller
from turnkeeper.v1 import schedules_pb2 as wire


class Tasks:
    """Client of the runner for questions about tasks."""

    def __init__(self, home: Home) -> None:
        self.runner = AsyncCaller(home, via=Identity.of_daemon("agent-runtime", "task-runner", home))

    async def close(self) -> None:
        """Close the connection to the runner."""
        await self.runner.close()

    async def task(self, task_id: str) -> TaskNow:
        """Return the current state of a task from the runner. Raises NotFound, Unreachable."""
        task: wire.Task = await self.runner.GetTask(wire.GetTaskRequest(name=task_id))
        return TaskNow(state=task.state, category=task.spec.category, read_only=task.spec.read_only)
