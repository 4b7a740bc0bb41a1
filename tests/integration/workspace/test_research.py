"""The research sweep: pages of the web become candidates that name where they came from, once the author lets it go on."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agent_runtime.permissions.categories import Categories
from agent_runtime.workspace.model import PageDraft
from agent_runtime.workspace.web.addresses import refuse_private
from agent_runtime.workspace.web.page import WebReader
from agent_runtime.workspace.workspace import Workspace
from tests.integration.workspace.conftest import Agent, Begin, Told, call
from tests.support.clock import ManualClock
from tests.support.pages import Answer, Site, serving
from tests.support.seeded_entropy import SeededEntropy
from tests.support.workspace import list_candidates, put_page
from turnkeeper.config.home import Home
from turnkeeper.errors import Denied, InvalidInput, NotFound
from turnkeeper.storage.database import Database

PUMP = (
    b"<html><head><title>Pump repair</title></head><body><article><p>The pump's seal had worn out by May.</p></article>"
)


@pytest.fixture(scope="module")
def server() -> Iterator[Site]:
    with serving() as site:
        yield site


@pytest.fixture
def site(server: Site) -> Site:
    server.pages.clear()
    server.asked.clear()
    return server


@pytest.fixture
def workspace(database: Database, clock: ManualClock, told: Told, site: Site) -> Workspace:
    """A workspace whose web may reach the test's own server, which no setting of a user can bring about."""

    def refuse(address: Any) -> None:
        if str(address) != "127.0.0.1":
            refuse_private(address)

    web = WebReader(clock, refuse=refuse, ports=frozenset({site.port}))
    return Workspace(database, clock, SeededEntropy(1), lambda event, fields: told.append((event, dict(fields))), web)


async def test_a_page_becomes_a_candidate_that_names_its_source(
    agent: Agent, workspace: Workspace, begin: Begin, site: Site
) -> None:
    site.pages["/pump"] = Answer(body=PUMP)
    url = site.url("/pump")
    await agent.run(begin(prompt=f"What does {url} say about the seal?", named="research-sweep"))
    assert agent.calls == ["web_fetch", "page_propose"]
    (candidate,) = await list_candidates(workspace)
    assert (candidate.title, candidate.sources) == ("Pump repair", (url,))
    assert (candidate.origin, candidate.lifecycle) == ("agent-produced", "candidate")
    assert "seal had worn out" in candidate.body
    assert f"Source: {url}" in candidate.body


async def test_what_cannot_be_read_is_said_and_the_rest_goes_on(
    agent: Agent, workspace: Workspace, begin: Begin, site: Site
) -> None:
    site.pages["/pump"] = Answer(body=PUMP)
    prompt = f"Sweep {site.url('/pump')} and {site.url('/gone')} and http://10.0.0.1/ and http://2130706433/"
    await agent.run(begin(prompt=prompt, named="research-sweep"))
    assert len(await list_candidates(workspace)) == 1
    for part in ("Read 1 of 4 pages", "404", "10.0.0.1 is private", "not an address in its usual form"):
        assert part in agent.text


async def test_a_redirect_reaches_no_host_that_the_category_does_not(
    workspace: Workspace, begin: Begin, site: Site, home: Home, categories: Categories
) -> None:
    site.pages["/"] = Answer(status=302, headers={"Location": site.url("/", "localhost")})
    text = 'name = "narrow"\n[scopes]\ntools = ["web.fetch"]\nnetwork = ["127.0.0.1"]\n'
    (home.categories / "narrow.toml").write_text(text)
    context = begin(category=categories.get("narrow"))
    with pytest.raises(Denied, match="localhost"):
        await workspace.fetch(call(context), site.url("/"))
    assert site.asked == ["/"]


async def test_without_a_reader_a_page_is_refused(workspace: Workspace, begin: Begin, site: Site) -> None:
    workspace._web = None  # as where the surface was removed
    with pytest.raises(InvalidInput, match="is not installed"):
        await workspace.fetch(call(begin(named="research-sweep")), site.url("/"))
    assert site.asked == []


async def test_links_need_their_own_grant(
    workspace: Workspace, begin: Begin, home: Home, categories: Categories
) -> None:
    text = 'name = "plain"\n[scopes]\ntools = ["page.propose"]\nwrites = ["candidate-page"]\n'
    (home.categories / "plain.toml").write_text(text)
    context = begin(category=categories.get("plain"))
    await workspace.propose(call(context, 1), PageDraft(page_id="a", title="A", body="a"))
    with pytest.raises(Denied, match="derivation"):
        await workspace.propose(
            call(context, 2), PageDraft(page_id="b", title="B", body="b", sources=("https://b.example/",))
        )


@pytest.mark.parametrize("source", ["", "ftp://a/", "No Page", "https://a b/", "a" * 101, "https://a/" + "b" * 2048])
async def test_what_is_no_source_is_refused_and_nothing_is_written(
    workspace: Workspace, begin: Begin, source: str
) -> None:
    draft = PageDraft(page_id="a", title="A", body="a", sources=(source,))
    with pytest.raises(InvalidInput, match="sources"):
        await workspace.propose(call(begin(named="research-sweep")), draft)
    assert await list_candidates(workspace) == []


async def test_a_page_as_a_source_is_linked_in_the_version_that_was_read(workspace: Workspace, begin: Begin) -> None:
    for body in ("first", "second"):
        await put_page(workspace, PageDraft(page_id="garden", title="Garden", body=body))
    context = begin(named="research-sweep")
    await workspace.propose(call(context, 1), PageDraft(page_id="a", title="A", body="a", sources=("garden", "garden")))
    (candidate,) = await list_candidates(workspace)
    assert candidate.sources == ("garden@2",)
    with pytest.raises(NotFound, match="nosuch"):
        await workspace.propose(call(context, 2), PageDraft(page_id="b", title="B", body="b", sources=("nosuch",)))
    assert len(await list_candidates(workspace)) == 1


async def test_an_author_reads_a_page_by_order(agent: Agent, begin: Begin, site: Site) -> None:
    site.pages["/pump"] = Answer(body=PUMP)
    await agent.run(begin(prompt=f"fetch: {site.url('/pump')}", named="conversation", started_by="author"))
    assert "seal had worn out" in agent.text


async def test_a_sweep_of_many_pages_goes_on_where_the_fire_before_stopped(
    agent: Agent, workspace: Workspace, begin: Begin, end: Callable[[str], None], site: Site
) -> None:
    for number in range(7):
        site.pages[f"/{number}"] = Answer(body=b"The seal had worn out on May %d." % number, kind="text/plain")
    prompt = "What is worn? " + " ".join(site.url(f"/{number}") for number in range(7))
    read = []
    for turn_id in ("one", "two", "three"):
        site.asked.clear()
        await agent.run(begin(turn_id, prompt=prompt, named="research-sweep", task_name="weekly"))
        end(turn_id)
        read.append(sorted(site.asked))
    assert read == [["/0", "/1", "/2", "/3", "/4"], ["/0", "/1", "/2", "/5", "/6"], ["/0", "/3", "/4", "/5", "/6"]]
    assert "Read 5 of 7 pages." in agent.text
    assert f"continues after {site.url('/0')}" in agent.text
