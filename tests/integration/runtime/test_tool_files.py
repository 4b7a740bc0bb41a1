"""Functions of the author's Python files as tools of the built-in agent."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from agent_runtime.tools.supplied import offers
from agent_runtime.tools.supplied.supply import ToolFile
from tests.integration.runtime.harness import SETTINGS, STATES, Bench
from tests.support.scripted import calls
from turnkeeper.config.home import Home
from turnkeeper.config.settings import ToolSettings
from turnkeeper.config.started import read_start, write_start
from turnkeeper.errors import InvalidInput

GARDEN = '''
from pathlib import Path
from langchain_core.tools import tool

WATERED = Path(__file__).parent / "watered"


@tool
def water(bed: str, liters: int = 2) -> str:
    """Water a bed."""
    with WATERED.open("a") as file:
        file.write(f"{bed} {liters}\\n")
    if bed == "pond":
        raise ValueError("the pond is full")
    return f"watered {bed}"


@tool
async def beds() -> dict:
    """Name the beds."""
    return {"beds": ["roses", "herbs"]}
'''


class Garden(Bench):
    """A bench with the file `garden.py` in its home."""

    @property
    def file(self) -> Path:
        return self.home.root / "garden.py"

    @property
    def watered(self) -> list[str]:
        path = self.home.root / "watered"
        return path.read_text().splitlines() if path.exists() else []

    async def said(self) -> str:
        return "\n".join(message.text for turn in await self.conversation() for message in turn.messages)

    def problems(self) -> dict[str, str]:
        found: dict[str, str] = json.loads((self.home.run / "tools.json").read_text())
        return found


@pytest_asyncio.fixture
async def garden(home: Home) -> AsyncIterator[Garden]:
    made = Garden(home)
    made.file.write_text(GARDEN)
    made.settings = SETTINGS.model_copy(update={"tools": ToolSettings(files=("garden.py",))})
    made.category("work", tools=["tools:water", "tools:beds"])
    await made.open()
    yield made
    await made.close()


async def test_a_granted_function_runs_without_a_question(garden: Garden) -> None:
    garden.script["go"] = [calls(("water", {"bed": "roses"}), ("beds", {}))]
    assert STATES.Name((await garden.run()).state) == "SUCCEEDED"
    assert garden.watered == ["roses 2"]
    assert '{"from": "tools:beds", "result": "{\\"beds\\": [\\"roses\\", \\"herbs\\"]}"}' in await garden.said()


async def test_a_function_that_no_category_grants_asks(garden: Garden) -> None:
    garden.category("work", tools=["tool:water"])  # the scope of a graph's tool of that name
    garden.script["go"] = [calls(("water", {"bed": "roses", "liters": 5}))]
    event = await garden.run()
    (asked,) = await garden.pending()
    assert (asked.missing_scope, asked.once_only) == ("tools:water", "")
    await garden.resolve(asked.interrupt_id, "approve")
    await garden.stopped(event.turn_id, after=event.sequence)
    assert garden.watered == ["roses 5"]


async def test_an_approval_is_for_the_code_that_was_there(garden: Garden) -> None:
    garden.category("work", tools=[])
    garden.script["go"] = [calls(("water", {"bed": "roses"}))]
    event = await garden.run()
    (asked,) = await garden.pending()
    garden.file.write_text(GARDEN.replace("{bed} {liters}", "everything {liters}"))
    await garden.crash()
    await garden.resolve(asked.interrupt_id, "approve")
    await garden.stopped(event.turn_id, after=event.sequence)
    (again,) = await garden.pending()
    assert "its tool or its arguments have changed since" in again.question
    assert garden.watered == []


async def test_an_error_of_a_function_is_its_answer_with_file_and_line(garden: Garden) -> None:
    garden.script["go"] = [calls(("water", {"bed": "pond"}), ("water", {"bed": "roses", "liters": "many"}))]
    assert STATES.Name((await garden.run()).state) == "SUCCEEDED"
    assert f"ValueError: the pond is full ({garden.file}:14)" in await garden.said()
    assert "unable to parse string as an integer" in await garden.said()
    assert garden.watered == ["pond 2"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import nothing_of_the_kind\n", "garden.py:1: cannot be imported: ModuleNotFoundError"),
        ("x = 1\ndef water(:\n", "garden.py:2: cannot be imported: SyntaxError"),
        ("x = 1\n\nx / 0\n", "garden.py:3: cannot be imported: ZeroDivisionError"),
        ("x = 1\n", "garden.py: contains no function with @tool"),
        (GARDEN.replace("def beds", "def memory_put"), "garden.py: another tool is called memory_put"),
        (None, "garden.py: is not a Python file"),
    ],
)
async def test_a_file_that_cannot_be_used_is_named_and_does_not_prevent_the_start(
    garden: Garden, text: str | None, why: str
) -> None:
    garden.file.unlink() if text is None else garden.file.write_text(text)
    await garden.crash()
    assert why in garden.problems()[str(garden.file)]
    garden.script["go"] = []
    assert STATES.Name((await garden.run()).state) == "SUCCEEDED"


def test_a_function_that_wants_what_no_model_gives_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tools.py"
    path.write_text(GARDEN.replace("bed: str,", "bed: str, runtime: ToolRuntime,").replace(
        "from pathlib", "from langchain.tools import ToolRuntime\nfrom pathlib"))  # fmt: skip
    with pytest.raises(InvalidInput, match="water takes runtime, which no model gives"):
        ToolFile(path).load()


async def test_a_file_below_the_persons_home_is_loaded_and_recorded(
    garden: Garden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "far.py").write_text(GARDEN)
    garden.settings = SETTINGS.model_copy(update={"tools": ToolSettings(files=("~/far.py",))})
    write_start(garden.home, offers.PROCESS)
    await garden.crash()
    garden.script["go"] = [calls(("water", {"bed": "roses"}))]
    assert STATES.Name((await garden.run()).state) == "SUCCEEDED"
    start = read_start(garden.home, offers.PROCESS)
    assert start is not None
    assert str(tmp_path / "far.py") in start.files
