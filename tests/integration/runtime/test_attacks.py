"""Attacks on the guard: each is refused or asked and has no effect; and has its effect when its guards are taken out."""

import sys
from collections.abc import AsyncIterator
from importlib import import_module
from typing import Any

import pytest
import pytest_asyncio

from tests.integration.runtime import attacks_on_approvals, attacks_on_entrances  # noqa: F401  register their attacks
from tests.integration.runtime.attacks import ATTACKS, Attack, Field
from tests.support.guards import take_out
from turnkeeper.config.home import Home


@pytest_asyncio.fixture
async def field(home: Home, request: pytest.FixtureRequest) -> AsyncIterator[Field]:
    made = Field(home)
    yield made
    await made.close()


def named(attack: Attack) -> str:
    return attack.name


@pytest.mark.parametrize("attack", ATTACKS, ids=named)
async def test_an_attack_has_no_effect(attack: Attack, field: Field) -> None:
    attack.prepare(field)
    await field.open()
    assert await attack.run(field) == []
    assert ("FAILED" in await field.history()) is field.catches, "it was refused or asked, not broken"


@pytest.mark.parametrize("attack", ATTACKS, ids=named)
async def test_an_attack_succeeds_without_its_guards(
    attack: Attack, field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_out(attack.without, monkeypatch)
    attack.prepare(field)
    await field.open()
    assert await attack.run(field) != []


@pytest.mark.parametrize("attack", [one for one in ATTACKS if len(one.without) > 1], ids=named)
async def test_of_two_guards_each_is_enough(attack: Attack, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, (guard, nothing) in enumerate(attack.without.items()):
        fresh = Home(root=home.root / str(number))
        fresh.create()
        field = Field(fresh)
        with monkeypatch.context() as out:
            take_out({guard: nothing}, out)
            attack.prepare(field)
            await field.open()
            assert await attack.run(field) == [], guard
        await field.close()


def test_another_interpreter_of_the_process_has_no_tools_to_call() -> None:
    """The guard is on the classes of one interpreter. Where LangChain could be loaded in a second, it would need its own."""
    interpreters: Any = import_module("_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters")
    made = interpreters.create()
    try:
        said = interpreters.run_string(made, "from langchain_core.tools import tool")  # told as a value since 3.13
        told = str(said)
    except RuntimeError as error:
        told = str(error)
    assert "ImportError" in told
    assert "subinterpreters" in told
