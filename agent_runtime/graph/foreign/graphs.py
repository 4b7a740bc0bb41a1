"""All graphs of a home: which names there are, and the authors' graphs opened.

The graph of `agent0` is the default one. If its reference is into a `langgraph.json`, the other graphs of that file are
there too, by the names that it gives them; `[graphs]` names more. A graph other than the default one that cannot be
loaded, or must not run, keeps nothing from starting: whoever names it is told why.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from agent_runtime.graph.foreign.load import Opened, open_graph, targets
from agent_runtime.graph.foreign.project import read_catalog
from agent_runtime.model.graphs import Catalog
from turnkeeper.config.home import Home
from turnkeeper.config.settings import Settings
from turnkeeper.errors import TurnkeeperError


@dataclass(frozen=True, kw_only=True)
class Graphs:
    """The graphs of a home.

    Attributes:
        catalog: what a fire or a message may name.
        opened: the authors' graphs that can run, by name.
    """

    catalog: Catalog = field(default_factory=Catalog)
    opened: Mapping[str, Opened] = field(default_factory=dict)

    @property
    def default(self) -> Opened | None:
        """The author's graph that is the default one; None where that is our own agent."""
        return self.opened.get(self.catalog.default)

    @property
    def environment(self) -> dict[str, str]:
        """The variables of all projects."""
        return {key: value for one in self.opened.values() for key, value in one.loaded.reference.environment.items()}


@asynccontextmanager
async def open_graphs(settings: Settings, home: Home, environ: Mapping[str, str]) -> AsyncIterator[Graphs]:
    """Open all graphs of a home; what they opened is closed at the end of the block.

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
