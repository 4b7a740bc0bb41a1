"""All graphs of a home: find their names, and open the authors' graphs.

The graph of `agent0` is the default one. If its reference names a graph in a `langgraph.json`, the other graphs of that
file are available too, under their names there; `[graphs]` adds more graphs. If a graph other than the default one
cannot be loaded or must not run, the runtime still starts, and triggers that name the graph get the reason.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from agent_runtime.graph.foreign.load import Opened, open_graph, targets
from agent_runtime.graph.foreign.project import code_of, read_catalog
from agent_runtime.graph.models.make import take_keys
from agent_runtime.model.graphs import Catalog, Graphs
from agent_runtime.model.trigger import FIRST_AGENT
from turnkeeper.config.home import Home
from turnkeeper.config.settings import Settings
from turnkeeper.errors import InvalidInput, TurnkeeperError


@asynccontextmanager
async def open_graphs(settings: Settings, home: Home, environ: Mapping[str, str]) -> AsyncIterator[Graphs]:
    """Open all graphs of a home, and close their resources at the end of the block.

    Raises:
        InvalidInput: a worker has a graph, the default graph cannot be made, or :func:`read_catalog` raises it.
    """
    for name, agent in settings.agents.items():
        if agent.graph and name != FIRST_AGENT:
            what = f"agents.{name}.graph: only {FIRST_AGENT} has a graph, and its workers run the same graph"
            raise InvalidInput(what, where=str(home.config), hint=f"write it under [agents.{FIRST_AGENT}]")
    catalog, trusted = read_catalog(settings, home), targets(settings.categories.trusted_graphs, home.root)
    if any(catalog.references.values()):
        take_keys(home, environ)
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
        found = [one.loaded.reference for one in opened.values()]
        yield Graphs(
            catalog=known,
            opened=opened,
            files={file for one in found for file in (*code_of(one), one.project_file) if file},
            environment={key: value for one in found for key, value in one.environment.items()},
        )
