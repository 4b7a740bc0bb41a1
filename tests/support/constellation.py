"""A real constellation in a throwaway home: real processes, real sockets, the real command lines."""

from datetime import datetime
from typing import Any

from constellation.demo.driver import Driver
from constellation.inspect.history import History, Violation, check
from constellation.supervisor.daemons import AGENT_RUNTIME, TASK_RUNNER
from turnkeeper.event_log import read_events


class Constellation(Driver):
    """Both daemons on one home, driven as a person would drive them."""

    def command(self, *argv: str, code: int = 0) -> str:
        """Run a command, insist on its exit code, and return what it printed on stdout."""
        done = self.attempt(*argv)
        assert done.returncode == code, f"{argv} exited with {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def create(self, name: str, *options: str, channel: str = "general") -> dict[str, Any]:
        """Create a task with defaults for what a test does not care about."""
        given = list(options)
        for flag, value in (("--category", "catch-up-summary"), ("--channel", channel), ("--prompt", "Summarise.")):
            given += [] if flag in given else [flag, value]
        self.command("task-runner", "create", name, *given)
        found: dict[str, Any] = self.ask("task-runner", "show", name)
        return found

    def conversation(self, channel: str = "general", limit: int = 50) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("agent-runtime", "conversation", "show", channel, "-n", str(limit))
        return found

    def violations(self, *, drained: bool = True) -> list[Violation]:
        """Hold everything that happened on this home against the invariants."""
        tasks = self.ask("task-runner", "list")
        asked = [("task-runner", "history", task["name"], "-n", "1000") for task in tasks]
        turns, *entries = self.ask_all([("agent-runtime", "turns", "list", "-n", "1000"), *asked])
        ledger = [entry for found in entries for entry in found]
        history = History(events=list(read_events(self.home.logs)), ledger=ledger, turns=turns)
        periods = {task["id"]: task for task in tasks}
        return check(history, drained=drained, count_nominals=lambda *span: self._count(periods, *span))

    def _count(self, tasks: dict[str, Any], task_id: str, first: datetime, last: datetime) -> int:
        """Count nominal times by asking the preview, which shares no code with the planner's own counting."""
        if tasks[task_id]["kind"] == "at":
            return 1
        start_at = datetime.fromtimestamp(first.timestamp() - 1, first.tzinfo).isoformat()
        shown = self.ask("task-runner", "next", tasks[task_id]["name"], "--from", start_at, "-n", "1000")
        return sum(datetime.fromisoformat(item["nominal_at"]) <= last for item in shown)


__all__ = ["AGENT_RUNTIME", "TASK_RUNNER", "Constellation"]
