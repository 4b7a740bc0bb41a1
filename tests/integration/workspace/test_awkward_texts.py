"""Whatever is written into pages and memory: it is given back as it was, or refused by its field's name."""

from collections.abc import Awaitable, Callable

import pytest

from agent_runtime.workspace import memory, pages
from agent_runtime.workspace.model import PageDraft
from agent_runtime.workspace.workspace import Workspace
from tests.integration.workspace.conftest import Begin, call
from tests.support.awkward import TEXTS
from turnkeeper.errors import InvalidInput
from turnkeeper.storage.database import Database

REFUSED = {"NUL": "contains a NUL", "half": "contains a lone surrogate", "long": "the limit is"}


async def kept_or_refused(name: str, write: Awaitable[object], read: Callable[[], Awaitable[str]]) -> None:
    if name in REFUSED:
        with pytest.raises(InvalidInput, match=REFUSED[name]) as refused:
            await write
        assert refused.value.where
    else:
        await write
        assert await read() == TEXTS[name]


@pytest.mark.parametrize("name", TEXTS)
async def test_a_page(workspace: Workspace, database: Database, name: str) -> None:
    draft = PageDraft(page_id="garden", title="Garden", body=TEXTS[name])

    async def read() -> str:
        return (await database.run(lambda connection: pages.get_page(connection, "garden"))).body

    await kept_or_refused(name, workspace.authors.put(draft), read)


@pytest.mark.parametrize("name", [name for name in TEXTS if name != "empty"])  # an entry of nothing is refused, too
async def test_a_memory(workspace: Workspace, database: Database, begin: Begin, name: str) -> None:
    shelf = memory.Shelf(tier="channel", owner="general")
    made = call(begin(named="conversation"))

    async def read() -> str:
        return (await database.run(lambda connection: memory.get(connection, shelf, "k"))).text

    await kept_or_refused(name, workspace.memory.put(made, tier="channel", text=TEXTS[name], key="k", channel=""), read)
