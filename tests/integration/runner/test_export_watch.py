"""A folder with one file for each task: what changes on one side is done on the other, and nothing is lost."""

import json
import shutil
from pathlib import Path

import pytest

from task_runner.cli import application
from task_runner.cli.client import Runner
from task_runner.cli.declare.mirror import AGREED, Agreed, Mirror, Step, decide
from task_runner.cli.declare.task_file import declaration_of
from turnkeeper import console
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.errors import InvalidInput, NotFound
from turnkeeper.v1 import schedules_pb2 as wire

TASK = '[[task]]\nname = "{name}"\ncategory = "loop"\nchannel = "general"\nprompt = "{prompt}"\nevery = "1h"\n'


@pytest.mark.parametrize(
    ("agreed", "file", "task", "step"),
    [
        (("f", "t"), "f", "t", Step.NOTHING),
        ((None, None), "f", None, Step.APPLY),
        ((None, None), None, "t", Step.WRITE),
        ((None, None), "f", "t", Step.SET_ASIDE),
        ((None, None), "t", "t", Step.AGREE),
        (("f", "t"), "f2", "t", Step.APPLY),
        (("f", "t"), None, "t", Step.DELETE),
        (("f", "t"), "f", "t2", Step.WRITE),
        (("f", "t"), "f", None, Step.REMOVE),
        (("f", "t"), None, None, Step.AGREE),
        (("f", "t"), None, "t2", Step.WRITE),
        (("f", "t"), "f2", "t2", Step.SET_ASIDE),
        (("f", "t"), "f2", None, Step.SET_ASIDE),
    ],
)
def test_what_changed_on_one_side_is_done_on_the_other(agreed, file, task, step) -> None:
    assert decide(Agreed(*agreed), file, task) is step


class Watched:
    """A folder that is watched, look by look."""

    def __init__(self, home: Home) -> None:
        self.runner, self.folder = Runner(home), home.root / "loops"
        self.again()

    def again(self) -> None:
        self.mirror = Mirror(self.folder)

    def look(self, times: int = 2) -> list[str]:
        """Look as often as an edit needs to count; return what was said."""
        said: list[str] = []
        for _ in range(times):
            specs = [declaration_of(task) for task in self.tasks()]
            said += [f"{done.name}: {done.what}" for done in self.mirror.look(self.runner, specs)]
        return said

    def tasks(self) -> list[wire.Task]:
        return list(self.runner.call(wire.ListTasksRequest()).tasks)

    def prompts(self) -> dict[str, str]:
        return {task.spec.name: task.spec.prompt for task in self.tasks()}

    def write(self, name: str, prompt: str) -> Path:
        path = self.folder / f"{name}.toml"
        path.write_text(f"# mine\n{TASK.format(name=name, prompt=prompt)}")
        return path

    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir() if path.name != AGREED)


@pytest.fixture
def watched(home: Home) -> Watched:
    made = Watched(home)
    spec = wire.TaskSpec(name="digest", category="loop", channel="general", prompt="p", every="1h", id="loop-7f3c2a10")
    made.runner.call(wire.ApplyTasksRequest(specs=[spec]))
    assert made.look() == ["digest: written"]
    return made


def test_a_task_is_one_file_and_to_delete_it_is_to_remove_that_file(watched: Watched) -> None:
    assert watched.files() == ["digest.toml"]
    (watched.folder / "digest.toml").unlink()
    assert watched.look(1) == [], "an editor may be replacing it"
    assert watched.look(1) == ["digest: deleted, because its file was deleted"]
    assert watched.tasks() == []
    assert watched.look() == []


def test_a_file_creates_a_task_and_an_edit_changes_it_and_the_file_stays_as_it_was_written(watched: Watched) -> None:
    path = watched.write("news", "one")
    assert watched.look() == ["news: created from its file"]
    watched.write("news", "two")
    assert watched.look() == ["news: updated from its file"]
    assert watched.prompts()["news"] == "two"
    assert path.read_text().startswith("# mine\n")
    edited = (watched.folder / "digest.toml").read_text().replace('"p"', '"q"')
    (watched.folder / "digest.toml").write_text(edited)
    assert watched.look() == ["digest: updated from its file"]
    assert [task.id for task in watched.tasks() if task.spec.prompt == "q"] == ["loop-7f3c2a10"], "it is still a loop"


def test_what_changes_elsewhere_is_written_and_removed(watched: Watched) -> None:
    (task,) = watched.tasks()
    spec = declaration_of(task)
    spec.prompt = "by a command"
    watched.runner.call(wire.ApplyTasksRequest(specs=[spec]))
    assert watched.look() == ["digest: written"]
    assert "by a command" in (watched.folder / "digest.toml").read_text()
    watched.runner.call(wire.DeleteTaskRequest(name="digest"))
    assert watched.look() == ["digest: deleted, so its file is removed"]
    assert watched.files() == []


def test_of_two_changes_the_tasks_stands_and_the_file_is_kept(watched: Watched) -> None:
    watched.write("digest", "mine")
    watched.runner.call(wire.DeleteTaskRequest(name="digest"))
    (said,) = watched.look()
    assert "changed in both" in said
    assert watched.files() == ["digest.toml.rejected"]
    assert watched.tasks() == []


def test_a_mistake_is_told_once_and_changes_nothing(watched: Watched) -> None:
    path = watched.write("news", "one")
    path.write_text(path.read_text().replace('"1h"', '"never"'))
    watched.write("other", "one").rename(watched.folder / "wrong.toml")
    said = watched.look(4)
    assert len(said) == 2
    assert f"{path}:7" in said[0]
    assert "must declare the task 'wrong' and no other" in said[1]
    assert list(watched.prompts()) == ["digest"]
    watched.write("news", "one")
    assert watched.look() == ["news: created from its file"]


def test_what_was_changed_while_nobody_watched_counts(watched: Watched) -> None:
    watched.write("news", "one")
    (watched.folder / "digest.toml").unlink()
    watched.again()
    assert sorted(watched.look()) == ["digest: deleted, because its file was deleted", "news: created from its file"]


def test_a_folder_that_is_gone_or_was_emptied_of_all_deletes_nothing(watched: Watched) -> None:
    for path in watched.folder.iterdir():
        path.unlink()
    assert watched.look() == ["digest: written"]
    shutil.rmtree(watched.folder)
    with pytest.raises(NotFound, match="no task was deleted"):
        watched.look()
    watched.again()
    assert watched.look() == ["digest: written"]


def test_files_that_declare_what_is_there_already_are_taken_as_they_are(watched: Watched) -> None:
    path = watched.write("news", "one")
    watched.look()
    (watched.folder / AGREED).unlink()
    watched.again()
    assert watched.look() == []
    assert path.read_text().startswith("# mine\n")


def test_notes_that_cannot_be_read_are_refused(watched: Watched) -> None:
    (watched.folder / AGREED).write_text(json.dumps([1]))
    with pytest.raises(InvalidInput, match="was not written by"):
        watched.again()


def test_the_command_watches_until_it_is_interrupted(
    home: Home, capsys: pytest.CaptureFixture[str], monkeypatch
) -> None:
    looks = iter([None, KeyboardInterrupt()])

    def pause(_clock: SystemClock, _seconds: float) -> None:
        if error := next(looks):
            raise error

    monkeypatch.setattr(SystemClock, "block", pause)
    run = lambda *argv: console.run(application(), ["--home", str(home.root), *argv])  # noqa: E731
    assert run("loop", "create", "1h", "count sheep") == 0
    assert run("export", "--watch", str(home.root / "loops")) == 130
    assert "written" in capsys.readouterr().err
    assert [path.suffix for path in (home.root / "loops").glob("loop-*")] == [".toml"]
    assert run("export", "digest", "--watch", str(home.root / "loops")) == 2
