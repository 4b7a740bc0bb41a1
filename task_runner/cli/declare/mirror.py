"""`export --watch`: a folder with one TOML file for each task. Editing or removing a file changes or deletes its task.

The folder stores the last state that both agreed on. So changes that were made while no program watched are
recognized. If this state is missing, files are only added: an accidentally empty folder deletes no task.
"""

import json
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any, NamedTuple

from task_runner.cli import client
from task_runner.cli.declare.task_file import Declared, declaration_of, read_declarations, write_declarations
from turnkeeper import console
from turnkeeper.clock import SystemClock
from turnkeeper.errors import Conflict, Exhausted, InvalidInput, NotFound, Unreachable
from turnkeeper.storage.files import replace_whole
from turnkeeper.v1 import schedules_pb2 as wire

AGREED = ".agreed.json"
REJECTED = ".rejected"
POLL_S = 1.0
Texts = tuple[str | None, str | None]
_NEVER: Texts = ("", "")


class Agreed(NamedTuple):
    """The texts of one task when folder and runner last agreed; None if it had no text."""

    file: str | None = None
    task: str | None = None


class Step(Enum):
    """The action for one task."""

    NOTHING = auto()
    AGREE = auto()  # folder and runner agree
    APPLY = auto()  # the file was written
    DELETE = auto()  # the file was removed
    WRITE = auto()  # the task changed
    REMOVE = auto()  # the task was deleted
    SET_ASIDE = auto()  # both changed: the task stays, and the file is kept under another name


def decide(agreed: Agreed, file: str | None, task: str | None) -> Step:
    """Decide about one task. Copy a change on one side to the other; if both changed, the task wins."""
    file_changed, task_changed = file != agreed.file, task != agreed.task
    if file == task and (file_changed or task_changed):
        return Step.AGREE
    if file_changed and task_changed:
        return Step.WRITE if file is None else Step.SET_ASIDE
    if file_changed:
        return Step.DELETE if file is None else Step.APPLY
    if task_changed:
        return Step.REMOVE if task is None else Step.WRITE
    return Step.NOTHING


@dataclass(frozen=True)
class Done:
    """One action that was done or failed, to be shown to the user."""

    name: str
    what: str


class Mirror:
    """One folder. A changed file is applied after two equal readings, because editors write in several steps."""

    def __init__(self, folder: Path) -> None:
        """Create the folder if it is missing."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = folder
        self._agreed = _read_agreed(folder / AGREED)
        self._before: dict[str, str] = {}
        self._refused: dict[str, Texts] = {}

    def look(self, runner: Any, specs: list[wire.TaskSpec]) -> list[Done]:
        """Compare the folder with the tasks, and apply the differences. Raises NotFound, Unreachable."""
        files, tasks = self._files(), {spec.name: write_declarations([spec]) for spec in specs}
        before, self._before = self._before, files
        done: list[Done] = []
        for name in sorted(files.keys() | tasks.keys() | self._agreed.keys()):
            file, task, agreed = files.get(name), tasks.get(name), self._agreed.get(name, Agreed())
            settled = file in (agreed.file, before.get(name))
            if not settled or self._refused.get(name, _NEVER) == (file, task):
                continue
            self._refused.pop(name, None)
            try:
                done += self._do(decide(agreed, file, task), name, file, task, runner)
            except (InvalidInput, NotFound, Conflict) as error:
                self._refused[name] = (file, task)
                done.append(Done(name, f"not taken: {error}"))
        return done

    def _do(self, step: Step, name: str, file: str | None, task: str | None, runner: Any) -> list[Done]:
        path, said = self._folder / f"{name}.toml", ""
        if step is Step.NOTHING:
            return []
        if step is Step.SET_ASIDE and self._says_the_same(name, path, runner):
            step = Step.AGREE
        if step is Step.APPLY:
            said, task = self._apply(name, path, runner)
        elif step is Step.DELETE:
            runner.call(wire.DeleteTaskRequest(name=name))
            said, task = "deleted, because its file was deleted", None
        elif step is Step.REMOVE:
            path.unlink(missing_ok=True)
            said, file = "deleted, so its file is removed", None
        elif step in {Step.WRITE, Step.SET_ASIDE}:
            if step is Step.SET_ASIDE:
                path.replace(path.with_name(f"{path.name}{REJECTED}"))
                said = f"changed in both: the task stays, your file is {path.name}{REJECTED}"
            if task is not None:
                replace_whole(path, task.encode())
            file, said = task, said or "written"
        self._agree(name, Agreed(file, task))
        return [Done(name, said)] if said else []

    def _says_the_same(self, name: str, path: Path, runner: Any) -> bool:
        """Return whether applying a file would change nothing, regardless of its formatting."""
        with suppress(InvalidInput, Conflict):
            request = wire.ApplyTasksRequest(specs=[_declared(name, path).spec], dry_run=True)
            return bool(runner.call(request).applied[0].action == "unchanged")
        return False

    def _apply(self, name: str, path: Path, runner: Any) -> tuple[str, str]:
        """Apply a file. Return the action, and the resulting text of the task."""
        declared = _declared(name, path)
        try:
            (done,) = runner.call(wire.ApplyTasksRequest(specs=[declared.spec])).applied
        except InvalidInput as error:
            error.where = declared.where(error.where.rpartition(": ")[2])
            raise
        task = runner.call(wire.GetTaskRequest(name=name))
        return f"{done.action} from its file", write_declarations([declaration_of(task)])

    def _files(self) -> dict[str, str]:
        if not self._folder.is_dir():
            raise NotFound("the folder is gone, so no task was deleted", where=str(self._folder))
        found = {}
        for path in self._folder.glob("*.toml"):
            if path.is_file() and not path.is_symlink() and not path.name.startswith("."):
                with suppress(FileNotFoundError):
                    found[path.stem] = path.read_bytes().decode(errors="replace")
        if self._agreed and not (self._folder / AGREED).exists():  # the folder was emptied or replaced: only add files
            self._agreed = {}
        return found

    def _agree(self, name: str, agreed: Agreed) -> None:
        self._agreed.pop(name, None)
        if agreed != Agreed():
            self._agreed[name] = agreed
        replace_whole(self._folder / AGREED, json.dumps(self._agreed).encode())


def _declared(name: str, path: Path) -> Declared:
    declared = read_declarations([path])
    if [each.spec.name for each in declared] != [name]:
        raise InvalidInput(f"must declare the task {name!r} and no other task", where=str(path))
    return declared[0]


def follow(folder: Path, clock: SystemClock) -> None:
    """Keep a folder and the tasks in sync until interrupted. Raises NotFound if the folder disappears."""
    mirror, runner, said = Mirror(folder), client.runner(), ""
    console.note(f"watching {folder}; Ctrl-C stops the watch")
    while True:
        trouble = ""
        try:
            if not runner.serving:
                runner = client.runner()
            tasks = runner.call(wire.ListTasksRequest()).tasks
            for done in mirror.look(runner, [declaration_of(task) for task in tasks]):
                console.note(f"{done.name}: {done.what}")
        except (Unreachable, Exhausted) as error:
            trouble, runner = str(error), client.runner()
        if trouble and trouble != said:
            console.note(f"{trouble}; retrying")
        said = trouble
        clock.block(POLL_S)


def _read_agreed(path: Path) -> dict[str, Agreed]:
    try:
        return {name: Agreed(*texts) for name, texts in json.loads(path.read_bytes()).items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError) as error:
        hint = "remove that file; missing task files then delete no task"
        raise InvalidInput("was not written by `export --watch`", where=str(path), hint=hint) from error
