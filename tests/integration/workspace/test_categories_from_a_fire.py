"""The categories at work on the workspace of a garden, each from a fire, through the service; the author decides by it."""

import re
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from agent_runtime.cli import app
from agent_runtime.cli.knowledge.workspace import read_folder
from agent_runtime.daemon.assembly import assemble
from agent_runtime.permissions.judge import REQUEST, SCOPES, TIERS, WRITES
from agent_runtime.service.servicer import Runtime, Servicer
from agent_runtime.workspace.web.addresses import refuse_private
from agent_runtime.workspace.web.page import WebReader
from tests.integration.runtime.harness import Call, soon
from tests.support.fires import accept
from tests.support.pages import Answer, Site, serving
from turnkeeper.config.home import Home
from turnkeeper.config.settings import load_settings
from turnkeeper.console import run
from turnkeeper.constellation.install.init import initialise
from turnkeeper.v1 import agent_runtime_pb2 as wire

ROOT = Path(__file__).parents[3]
NOMINAL = datetime(2026, 11, 23, 6, 0, tzinfo=UTC)
OVER = {wire.TurnEvent.INTERRUPTED, wire.TurnEvent.SUCCEEDED, wire.TurnEvent.SILENT, wire.TurnEvent.FAILED}


class Stage:
    """A home with its runtime in this process: the default graph on the offline model, under the real guard."""

    def __init__(self, home: Home, runtime: Runtime) -> None:
        self.home, self.runtime, self.service = home, runtime, Servicer(runtime)

    async def ask(self, method: str, request: Any) -> Any:
        return await getattr(self.service, method)(request, None)

    async def import_workspace(self) -> dict[str, str]:
        found = read_folder(self.home.root / "workspace")
        assert not found.problems
        pages = [
            wire.PutPageRequest(page_id=one.page_id, title=one.title, body=one.body, tags=one.tags, sources=one.sources)
            for one in found.pages
        ]
        done = await self.ask("ImportPages", wire.ImportPagesRequest(pages=pages))
        return {page.page_id: page.outcome for page in done.pages}

    async def fire(self, category: str, prompt: str, number: int = 1) -> str:
        request = wire.FireRequest(
            fire_id=f"task-{category}@{number}", task_id=f"task-{category}", task_name=category, thread_id=f"thread-{category}",
            channel="general", agent="agent0", category=category, prompt=prompt, kind="scheduled", attempt=1, timezone="UTC",
        )  # fmt: skip
        request.nominal_at.FromDatetime(NOMINAL)
        turn_id: str = (await accept(self.service, request)).turn_id
        await self.stopped(turn_id)
        return turn_id

    async def stopped(self, turn_id: str, states: set[Any] = OVER) -> None:
        """Wait until a turn comes to one of these states."""

        async def watch() -> None:
            request = wire.WatchTurnsRequest(incarnation=self.runtime.store.incarnation)
            async for event in self.service.WatchTurns(request, Call()):
                if event.turn_id == turn_id and event.state in states:
                    assert event.state != wire.TurnEvent.FAILED, event.error
                    return
            raise AssertionError("the stream ended")

        await soon(watch(), f"{turn_id} to stop")

    async def approve_all(self, turn_id: str) -> None:
        """Approve what a turn asks, and wait for its end."""
        for one in (await self.ask("ListInterrupts", wire.ListInterruptsRequest())).interrupts:
            approve = wire.ResolveInterruptRequest(interrupt_id=one.interrupt_id, decision="approve")
            await self.ask("ResolveInterrupt", approve)
        await self.stopped(turn_id, OVER - {wire.TurnEvent.INTERRUPTED})

    async def said(self, turn_id: str) -> str:
        found = await self.ask("GetConversation", wire.GetConversationRequest(channel="general"))
        (turn,) = [turn for turn in found.turns if turn.turn_id == turn_id]
        return "\n".join(message.text for message in turn.messages if message.role == "agent")

    async def only(self, method: str, request: Any, field: str) -> Any:
        (found,) = getattr(await self.ask(method, request), field)
        return found


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serving() as made:
        yield made


def example() -> str:
    """Return the author's category that the docs show, word for word."""
    (text,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "categories.md").read_text(), re.DOTALL)
    return str(text)


@pytest.fixture
async def stage(home: Home, site: Site) -> AsyncIterator[Stage]:
    initialise(home, example=False)
    shutil.copytree(ROOT / "examples" / "garden", home.root / "workspace")
    (home.categories / "supplier-watch.toml").write_text(example())
    (line,) = re.findall(
        r"^    (autonomous_allowed = .*)$", (ROOT / "docs" / "categories.md").read_text(), re.MULTILINE
    )
    config = re.sub(r"^autonomous_allowed = .*$", line, home.config.read_text(), flags=re.MULTILINE)
    home.config.write_text(config)
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(assemble(home, load_settings(home), environ={}))

        def refuse(address: Any) -> None:
            if str(address) != "127.0.0.1":
                refuse_private(address)

        async def resolve(_host: str, _port: int) -> list[Any]:
            return [ip_address("127.0.0.1")]

        # Nothing but a test can let the web reach this machine: no setting, category or argument does.
        runtime.workspace._web = WebReader(runtime.clock, resolve=resolve, refuse=refuse, ports=frozenset({site.port}))
        await runtime.worker.start()
        yield Stage(home, runtime)
        await runtime.worker.stop(5.0)
        runtime.mailboxes.close()


async def test_a_page_that_a_changed_source_contradicts_is_found_by_the_walk_and_decided_by_the_author(
    stage: Stage,
) -> None:
    outcomes = await stage.import_workspace()
    assert outcomes["leaflet"] == outcomes["garden"] == "new"
    garden = stage.home.root / "workspace" / "garden.md"
    garden.write_text(garden.read_text().replace("three are free", "five are free"))
    assert (await stage.import_workspace())["garden"] == "changed"
    item = await stage.only("ListRevalidation", wire.ListRevalidationRequest(), "items")
    assert (item.page_id, item.cause, item.cause_version) == ("leaflet", "garden", 2)

    turn_id = await stage.fire("re-validation-walk", "Hold the pages whose sources changed against them.")
    said = await stage.said(turn_id)
    assert "Compared 1 page of 1" in said
    settled = await stage.only("ListRevalidation", wire.ListRevalidationRequest(all=True), "items")
    assert (settled.state, settled.result, settled.turn_id) == ("settled", "deviation", turn_id)
    deviation = await stage.only("ListDeviations", wire.ListDeviationsRequest(channel="general"), "deviations")
    assert (deviation.page_id, deviation.source, deviation.turn_id) == ("leaflet", "garden", turn_id)
    assert deviation.found == "Forty-two plots are let, five are free."
    before = await stage.ask("GetPage", wire.GetPageRequest(page_id="leaflet"))
    assert ("three are free" in before.body, before.version) == (True, 1)

    resolve = wire.ResolveDeviationRequest(deviation_id=deviation.deviation_id, accept=True)
    await stage.ask("ResolveDeviation", resolve)
    after = await stage.ask("GetPage", wire.GetPageRequest(page_id="leaflet"))
    assert ("five are free" in after.body, after.version, after.origin) == (True, 2, "agent-produced")
    assert list(after.sources) == ["garden@2"], "what it was held against last"
    again = await stage.fire("re-validation-walk", "Hold the pages whose sources changed against them.", number=2)
    assert (await stage.said(again)).strip() == "nothing to do this fire"


async def test_a_research_sweep_halts_proposes_with_its_sources_and_the_author_accepts(
    stage: Stage, site: Site
) -> None:
    site.pages["/pump"] = Answer(
        body=b"<html><head><title>Pump repair</title></head><body><p>The pump's seal had worn out by May.</p></body>"
    )
    await stage.import_workspace()
    table = b"Plot 7 is free. Plot 9 is let until May."
    file = wire.PutAttachmentRequest(page_id="garden", name="plots.txt", content_type="text/plain", data=table)
    await stage.ask("PutAttachment", file)
    url = site.url("/pump")
    turn_id = await stage.fire("research-sweep", f"Which plots are free? See {url} and attachment:garden/plots.txt.")
    asked = (await stage.ask("ListInterrupts", wire.ListInterruptsRequest())).interrupts
    assert {(one.kind, one.turn_id, one.tool) for one in asked} == {("proposal", turn_id, "page_propose")}
    assert not (await stage.ask("ListCandidates", wire.ListCandidatesRequest())).candidates
    await stage.approve_all(turn_id)
    found = (await stage.ask("ListCandidates", wire.ListCandidatesRequest())).candidates
    by_title = {one.title: one for one in found}
    assert {title: list(one.sources) for title, one in by_title.items()} == {
        "Pump repair": [url],
        "plots.txt of garden": ["garden@1"],
    }
    assert "Plot 7 is free." in by_title["plots.txt of garden"].body
    assert {one.origin for one in found} == {"agent-produced"}
    pump = by_title["Pump repair"].candidate_id
    await stage.ask("DecideCandidate", wire.DecideCandidateRequest(candidate_id=pump, accept=True))
    page = await stage.ask("GetPage", wire.GetPageRequest(page_id="pump-repair"))
    assert (page.origin, page.lifecycle, list(page.sources)) == ("agent-produced", "canonical", [url])


async def test_the_authors_own_category_of_the_docs_does_its_job_unasked_and_no_more(
    stage: Stage, site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    site.pages["/seeds"] = Answer(
        body=b"<html><head><title>Seeds</title></head><body><p>Seeds cost 3 a bag.</p></body>"
    )
    url = site.url("/seeds", "prices.example.org")
    turn_id = await stage.fire("supplier-watch", f"What do seeds cost? See {url}")
    candidate = await stage.only("ListCandidates", wire.ListCandidatesRequest(), "candidates")
    assert (candidate.title, list(candidate.sources), candidate.turn_id) == ("Seeds", [url], turn_id)
    assert "Seeds cost 3 a bag." in candidate.body

    monkeypatch.setenv("NO_COLOR", "1")
    path = str(stage.home.categories / "supplier-watch.toml")
    for command in (["check", path], ["rehearse", path]):
        assert run(app, ["--home", str(stage.home.root), "categories", *command]) == 0
    said = capsys.readouterr()
    assert "2 calls of 1 turn: 2 would pass, 0 would not" in said.err

    elsewhere = await stage.fire("supplier-watch", f"See {site.url('/seeds', 'other.example.org')}", number=2)
    asked = await stage.only("ListInterrupts", wire.ListInterruptsRequest(), "interrupts")
    assert (asked.turn_id, asked.missing_scope) == (elsewhere, "network:other.example.org")


def test_the_docs_name_every_scope_and_every_shipped_category() -> None:
    text = "".join((ROOT / "docs" / page).read_text() for page in ("categories.md", "reference/tools.md"))
    shipped = {path.stem for path in (ROOT / "categories").glob("*.toml")}
    assert not [name for name in (*SCOPES, *WRITES, *TIERS, *shipped) if f"`{name}`" not in text]
    assert not set(re.findall(r"`([a-z]+\.[a-z_]+)`", text)) - {*SCOPES, REQUEST} - KEYS


KEYS = {
    *("scopes.tools", "scopes.writes", "scopes.memory", "scopes.channels", "scopes.network", "scopes.subagents"),
    *("scopes.recurring", "limits.seconds", "config.toml"),
}


async def test_a_sweep_that_is_asked_for_a_review_has_its_proposals_held_against_their_sources(
    stage: Stage, site: Site
) -> None:
    site.pages["/pump"] = Answer(
        body=b"<html><head><title>Pump repair</title></head><body><p>The pump's seal had worn out by May.</p></body>"
    )
    turn_id = await stage.fire("research-sweep", f"Review what {site.url('/pump')} says of the seal.")
    await stage.approve_all(turn_id)
    (turn,) = (await stage.ask("GetConversation", wire.GetConversationRequest(channel="general"))).turns
    assert "The reviewer: Checked 1 claim against 1 source: 1 borne out." in turn.messages[-1].text
    assert site.asked[-2:] == ["/pump", "/pump"], "the sweep and its reviewer each read it"
