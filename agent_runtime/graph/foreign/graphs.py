"""All graphs of a home: their names, and the authors' graphs opened.

The graph of `agent0` is the default one. If its reference points into a `langgraph.json`, the other graphs of that file
are available too, by their names there; `[graphs]` adds more. If a graph other than the default one cannot be loaded or
must not run, the runtime still starts, and triggers that name the graph get the reason.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_runtime.graph.foreign.load import Opened, open_graph, targets
from agent_runtime.graph.foreign.project import code_of, read_catalog
from agent_runtime.model.graphs import Catalog
from turnkeeper.config.home import Home
from turnkeeper.config.settings import Settings
from turnkeeper.errors import TurnkeeperError


@dataclass(frozen=True, kw_only=True)
class Graphs:
    """The graphs of a home.

    Attributes:
        catalog: the names that a fire or a message may use.
        opened: the authors' graphs that can run, by name.
    """

    catalog: Catalog = field(default_factory=Catalog)
    opened: Mapping[str, Opened] = field(default_factory=dict)

    @property
    def default(self) -> Opened | None:
        """The default graph if it is an author's; None if it is our own agent."""
        return self.opened.get(self.catalog.default)

    @property
    def files(self) -> set[Path]:
        """The files that were loaded for the graphs: their code and their project files."""
        references = [one.loaded.reference for one in self.opened.values()]
        return {file for one in references for file in (*code_of(one), one.project_file) if file}

    @property
    def environment(self) -> dict[str, str]:
        """The variables of all projects."""
        return {key: value for one in self.opened.values() for key, value in one.loaded.reference.environment.items()}


@asynccontextmanager
async def open_graphs(settings: Settings, home: Home, environ: Mapping[str, str]) -> AsyncIterator[Graphs]:
    """Open all graphs of a home, and close their resources at the end of the block.

    Raises:
        InvalidInput: the default graph cannot be made, or as :func:`read_catalog` does.
    """
    catalog, trusted = read_catalog(settings, home), targets(settings.categories.trusted_graphs, home.root)
    opened: dict[str, Opened] = {}
    problems: dict[str, str] = {}
    async with AsyncExitStack() as stack:
        for name in sorted(catalog.references, key=lambda name: name != catalog.default):
            if not (text := catalog.references[name]):
                continue
            how: dict[str, Any] = {"trusted": trusted, "environ": environ}
            try:
                one = await stack.enter_async_context(open_graph(text, home.root, **how))
                if name != catalog.default:
                    one.require()
            except TurnkeeperError as error:
                if name == catalog.default:
                    raise
                problems[name] = str(error)
            else:
                opened[name] = one
        known = Catalog(
            default=catalog.default, references=catalog.references, problems=problems, assistants=catalog.assistants
        )
        yield Graphs(catalog=known, opened=opened)
