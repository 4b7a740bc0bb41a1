"""The commands' access to the runner: through its daemon if a daemon runs, else through its store in this process."""

import importlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from turnkeeper import console
from turnkeeper.config.home import Home
from turnkeeper.errors import Conflict, InvalidInput, NotFound, meant
from turnkeeper.storage.locking import STARTING, is_held, is_starting
from turnkeeper.v1 import schedules_pb2 as wire

PROCESS = "task-runner"
_NEWEST_TURNS = 20  # newest turns of a channel, which include a turn that has just ended
# A transaction with thousands of tasks takes long.
_DEADLINES_S = {"ApplyTasks": 120.0}


def not_running(home: Home) -> str:
    """Report that no task fires because no daemon runs, and how to start one."""
    if why := home.waits_for_takeover():
        return f"{why[0]}, so nothing fires: {why[1]}"
    if importlib.import_module("task_runner.daemon.reads").is_shared(home):
        return "task-runner is not running on this machine; others that share its store: `turnkeeper status`"
    if is_starting(home, PROCESS):
        return f"task-runner is not running: {STARTING}"
    return "task-runner is not running: nothing fires until `turnkeeper up` or `task-runner serve`"


class Runner:
    """The runner of one home, with or without a running daemon. Previews are answered even if there is no home."""

    def __init__(self, home: Home) -> None:
        """Check whether a daemon holds the home's lock. Raises InvalidInput if the home cannot be trusted."""
        self.homeless = not os.path.lexists(home.root)
        if not self.homeless:
            home.check()
        self.home, self._is_noted = home, False
        self.serving = not self.homeless and is_held(home, PROCESS)
        self._caller = self._connect() if self.serving else None

    def call(self, request: Any) -> Any:
        """Send a request to the operation of the same name. A prefix of a task's name or id selects the task.

        Raises TurnkeeperError.
        """
        try:
            return self._call(request)
        except NotFound as error:
            given = getattr(request, "name", "")
            if not given or not error.what.startswith("no task named "):
                raise
            task = self._meant(given, error)
            console.note(f"{given} stands for {task.spec.name}")
            request.name = task.id
            return self._call(request)

    def stream(self, request: Any) -> Any:
        """Yield the messages of a daemon's stream. Raises InvalidInput if no daemon runs, and TurnkeeperError."""
        if self._caller is None:
            raise InvalidInput(
                "no daemon runs here, so changes cannot be followed", where="--follow", hint="start it: turnkeeper up"
            )
        yield from self._caller.ask(request)

    def _meant(self, given: str, error: NotFound) -> Any:
        """Return the only task whose name or id begins with a prefix. Raises `error` with suggestions, or Conflict."""
        tasks = self._call(wire.ListTasksRequest()).tasks
        found = [task for task in tasks if task.spec.name.startswith(given) or task.id.startswith(given)]
        names = sorted(task.spec.name for task in found)
        if len(found) > 1:
            raise Conflict(f"{len(found)} tasks begin with {given!r}: {', '.join(names[:4])}", hint="give more letters")
        if not found:
            hint = meant(given, (task.spec.name for task in tasks))
            error.hint = hint if hint.startswith("did you mean") else error.hint
            raise error
        return found[0]

    def _call(self, request: Any) -> Any:
        method = request.DESCRIPTOR.name.removesuffix("Request")
        if self._caller is not None:
            return self._caller.ask(request, deadline_s=_DEADLINES_S.get(method))
        # Imported late: the store's libraries take longer to load than the daemon takes to answer.
        answer = importlib.import_module("task_runner.daemon.reads").read(self.home, method, request)
        if answer is not None:
            return answer
        if self.homeless:
            if not getattr(request, "dry_run", False):
                self.home.check()
            with importlib.import_module("tempfile").TemporaryDirectory() as empty:  # a home without tasks
                at = Home(root=Path(empty))
                return importlib.import_module("task_runner.daemon.assembly").call(at, method, request)
        local = importlib.import_module("task_runner.daemon.assembly")
        if local.changes_nothing(method, request):
            self._note_older()
        try:
            return local.call(self.home, method, request)
        except Conflict as error:
            if error.where != str(self.home.lock(PROCESS)):
                raise
            self.serving = True  # the daemon started a moment ago
            self._caller = self._connect()
            return self._caller.ask(request, deadline_s=_DEADLINES_S.get(method))

    def _note_older(self) -> None:
        older = importlib.import_module("turnkeeper.storage.schema_revision")
        if not self._is_noted and self.home.schedules_db in older.older_stores(self.home):
            console.note(older.told(self.home.schedules_db))
            self._is_noted = True

    def _connect(self) -> Any:
        return importlib.import_module("turnkeeper.rpc.channel").Caller(self.home, via=f"{PROCESS}/cli")

    def last_texts(self, turn_id: str, channel: str) -> dict[str, str]:
        """Return the last text of each role in a turn, as its channel shows it. Raises TurnkeeperError."""
        asked = importlib.import_module("turnkeeper.v1.agent_runtime_pb2").GetConversationRequest(
            channel=channel, limit=_NEWEST_TURNS
        )
        turns = (self._caller or self._connect()).GetConversation(asked).turns
        return {one.role: one.text.strip() for turn in turns if turn.turn_id == turn_id for one in turn.messages}

    def is_served_elsewhere(self) -> bool:
        """Return whether a runner on another machine that shares the home's store is running."""
        url = importlib.import_module("turnkeeper.config.settings").load_settings(self.home).store.shared_url
        found = importlib.import_module("turnkeeper.storage.nodes").read_cluster(url).processes if url else ()
        return (PROCESS, "ready") in [(row["role"], row["state"]) for row in found]

    def note_unless_serving(self) -> None:
        """Warn that no task fires while no daemon runs."""
        if not self.serving and not self.homeless:
            console.note(not_running(self.home))


def runner() -> Runner:
    """Return the runner of the home that `--home` or the environment selects."""
    return Runner(console.named_home())


def all_tasks() -> list[Any]:
    return list(runner().call(wire.ListTasksRequest()).tasks)


def complete_name(incomplete: str) -> list[str]:
    """Return the task names that complete a prefix."""
    return [task.spec.name for task in all_tasks() if task.spec.name.startswith(incomplete)]


def complete_channel(incomplete: str) -> list[str]:
    """Return the channels of tasks that complete a prefix."""
    return sorted({task.spec.channel for task in all_tasks() if task.spec.channel.startswith(incomplete)})


def read_file(file: str) -> str:
    """Return the contents of a file that an option names. Raises NotFound or InvalidInput."""
    # Imported late: the TOML modules that it imports take longer to load than most commands take.
    text: str = importlib.import_module("turnkeeper.config.toml_file").read_text(Path(file))
    return text


def tags_of(texts: Iterable[str], flag: str = "--tag") -> dict[str, str]:
    """Convert `key=value` options to a mapping. Raises InvalidInput."""
    pairs = [text.partition("=") for text in texts]
    for key, equals, value in pairs:
        if not key or not equals or not value:
            raise InvalidInput(f"{key[:60]!r} is not key=value", where=flag)
    return {key: value for key, _, value in pairs}


NameArgument = Annotated[str, typer.Argument(help="A task's name or id.", autocompletion=complete_name)]
