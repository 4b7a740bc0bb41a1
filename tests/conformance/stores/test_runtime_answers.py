"""The same rows in a file and in a server's database: every list and every search of the runtime answers the same."""

import random  # noqa: TID251  seeded, so that a run can be repeated
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from agent_runtime.service import reads
from agent_runtime.store import mail, schema, turn_reads
from agent_runtime.store.database import open_database
from agent_runtime.workspace import deviations, memory, pages, revalidation
from tests.support.awkward import NAMES
from tests.support.postgres import Places
from turnkeeper.errors import NotFound
from turnkeeper.storage.database import Database
from turnkeeper.v1 import agent_runtime_pb2 as wire

Row = dict[str, Any]
ROWS = 80  # of each table, at most
NOON_US = 1_795_348_800_000_000
CHANNELS = NAMES[:8]
PAGES = [f"page {name}" for name in NAMES]
TURNS = [f"turn {number} {NAMES[number % len(NAMES)]}" for number in range(ROWS)]
SEARCHED = [*(name for name in NAMES if name.strip()), "AB z9", "straße", "i", "\u0131", "page É", "É é", "%", "_"]
TABLES = (
    schema.turns, schema.messages, schema.interrupts, schema.turn_events, schema.pages, schema.candidates,
    schema.derivations, schema.page_links, schema.memory, schema.deviations, schema.revalidations, schema.attachments,
    schema.delegations, schema.deliveries, schema.handoffs, schema.thread_records,
)  # fmt: skip


class Draw(random.Random):
    """Draws rows that the tables accept. Many share a name or an instant."""

    def words(self) -> str:
        return " ".join(self.choices(NAMES, k=self.randint(0, 6)))

    def value(self, column: sa.Column[Any]) -> Any:
        """Return a value for a column that no rule is about."""
        if isinstance(column.type, sa.Boolean):
            return self.random() < 0.5
        if isinstance(column.type, sa.LargeBinary):
            return self.words().encode()
        if isinstance(column.type, sa.BigInteger):
            return NOON_US + self.randint(0, 3) * 1_000_000 if column.name.endswith("_us") else self.randint(1, 3)
        return "" if column.name.endswith("_json") else self.words()

    def row(self, table: sa.Table, number: int) -> Row:
        named: Row = {
            "turn_id": self.choice(TURNS),
            "channel": self.choice(CHANNELS),
            "thread_id": self.choice(CHANNELS),
            "page_id": self.choice(PAGES),
            "agent": self.choice(CHANNELS),
            "tags": self.choice(['["ab"]', "[]", '["a_b", "é"]']),
            "origin": "authored",
        }
        drawn = {column.name: named.get(column.name) or self.value(column) for column in table.columns}
        return drawn | RULES[table.name](self, number, drawn)


def decided(draw: Draw, open_: str, over: tuple[str, ...]) -> Row:
    if draw.random() < 0.6:
        return {"lifecycle": open_, "decided_at_us": None, "decided_by": ""}
    return {"lifecycle": draw.choice(over), "decided_at_us": NOON_US, "decided_by": "author"}


def link(draw: Draw, drawn: Row) -> Row:
    source = draw.choice([page for page in PAGES if page != drawn.get("page_id")] + ["https://a_b.example/é"])
    return {"source": source, "page_version": 0 if "://" in source else draw.randint(1, 3)}


def remembered(draw: Draw, number: int, _drawn: Row) -> Row:
    tier = draw.choice(["conversation", "channel", "workspace", "account"])
    owned = tier in {"conversation", "channel"}
    owner = draw.choice(CHANNELS) if owned else ""
    return {"entry_id": f"m-{number:04}", "tier": tier, "owner": owner, "key": draw.choice(NAMES), "form": "text",
            "turn_id": "", "written_by": "author"}  # fmt: skip


def waiting(draw: Draw, _number: int, drawn: Row) -> Row:
    state = draw.choice(["waiting", "settled", "replaced"])
    over = {"result": "holds", "turn_id": drawn["turn_id"], "settled_at_us": NOON_US}
    rest = over if state == "settled" else {"result": "", "turn_id": "", "settled_at_us": None}
    return {"state": state, "cause": draw.choice(PAGES), "via": draw.choice(PAGES)} | rest


Rule = Callable[[Draw, int, Row], Row]
RULES: dict[str, Rule] = {
    "turns": lambda draw, n, _: {
        "turn_id": TURNS[n - 1], "grant_json": '{"name": "loop"}', "trigger": "author", "fire_id": "", "resumes": "",
        "status": draw.choice(["running", "interrupted", "paused", "succeeded", "silent", "failed", "cancelled"]),
    },
    "messages": lambda draw, n, _: {"position": n % 5, "role": draw.choice(["author", "agent"])},
    "interrupts": lambda draw, n, _: {
        "interrupt_id": f"i-{n}", "kind": draw.choice(["permission", "proposal", "question", "pause"]),
        "status": draw.choice(["pending", "resolved", "void"]), "args_json": "{}", "decision": "",
    },
    "turn_events": lambda draw, _n, _: {"state": draw.choice(["STARTED", "SUCCEEDED", "FAILED"]), "held_by_json": "[]"},
    "pages": lambda draw, _n, _: {"lifecycle": draw.choice(["draft", "canonical"]), "turn_id": "", "candidate_id": ""},
    "candidates": lambda draw, n, _: {
        "candidate_id": f"c-{draw.randint(0, 9999)}-{n}", "kind": draw.choice(["candidate-page", "candidate-summary"]),
        **decided(draw, "candidate", ("canonical", "rejected")),
    },
    "derivations": lambda draw, n, drawn: {"candidate_id": f"c-{n % 20}"} | link(draw, drawn),
    "page_links": lambda draw, _n, drawn: link(draw, drawn),
    "memory": remembered,
    "deviations": lambda draw, n, _: {
        "deviation_id": f"d-{draw.randint(0, 9999)}-{n}", "kind": "contradiction", "origin": "observed",
        **decided(draw, "open", ("kept", "accepted")),
    },
    "revalidations": waiting,
    "attachments": lambda draw, _n, drawn: {
        "name": draw.choice(NAMES), "size": len(drawn["data"]), "lifecycle": "canonical", "added_by": "author",
    },
    "delegations": lambda draw, n, _: {"turn_id": TURNS[n - 1], "state": draw.choice(["none", "open", "owed"])},
    "deliveries": lambda draw, n, _: {
        "key": f"{draw.choice(NAMES)} {n}", "turn_id": f"other {n}", "state": draw.choice(["waiting", "delivered"]),
    },
    "thread_records": lambda draw, n, _: {
        "thread_id": draw.choice([*CHANNELS, f"put {n}"]), "metadata_json": f'{{"n": {n % 3}}}',
        "withdrawn_at_us": draw.choice([None, None, NOON_US]),
    },
    "handoffs": lambda draw, n, _: {"key": f"{draw.choice(NAMES)} {n}", "kind": draw.choice(["handoff", "notes"])},
}  # fmt: skip


def rows_of(draw: Draw, table: sa.Table) -> list[Row]:
    """Return rows without two that share what must be unique; numbered ones in the order of their numbers."""
    numbered = isinstance(table.autoincrement_column, sa.Column)
    unique = [
        [column.name for column in each.columns]
        for each in (*table.indexes, *table.constraints)
        if getattr(each, "unique", False) or isinstance(each, sa.PrimaryKeyConstraint | sa.UniqueConstraint)
    ]
    kept: list[Row] = []
    seen: set[tuple[Any, ...]] = set()
    for number in range(1, ROWS + 1):
        row = draw.row(table, number)
        if numbered:
            row[table.autoincrement_column.name] = number
        keys = {(*names, *(row[name] for name in names)) for names in unique}
        if not keys & seen:
            seen |= keys
            kept.append(row)
    return kept


@pytest.fixture
def pair(tmp_path: Path, place_of: Places) -> Iterator[tuple[Database, Database]]:
    """A file, and a server's database."""
    place = place_of(tmp_path / "agent.db")
    if isinstance(place, Path):
        pytest.skip("compares a file with a server's database: --database postgres")
    opened = open_database(tmp_path / "agent.db"), open_database(place)
    yield opened
    for database in opened:
        database.close()


def lists_of_turns() -> Iterator[tuple[str, Any]]:
    yield "ListChannels", wire.ListChannelsRequest()
    for channel, limit in product(("", *CHANNELS), (0, 7)):
        yield "ListTurns", wire.ListTurnsRequest(channel=channel, limit=limit)
        yield "ListThreads", wire.ListThreadsRequest(channel=channel, limit=limit)
        yield "ListThreads", wire.ListThreadsRequest(channel=channel, limit=limit, metadata_json='{"n": 1}')
        yield "GetThread", wire.GetThreadRequest(thread_id=channel)
        yield "GetConversation", wire.GetConversationRequest(channel=channel, limit=limit)
        yield "GetConversation", wire.GetConversationRequest(thread_id=channel, limit=limit)
    for channel, whole in product(("", *CHANNELS), (False, True)):
        yield "ListInterrupts", wire.ListInterruptsRequest(channel=channel, all=whole)
        yield "ListCandidates", wire.ListCandidatesRequest(channel=channel, all=whole)
        yield "ListDeviations", wire.ListDeviationsRequest(channel=channel, all=whole)


def lists_of_pages() -> Iterator[tuple[str, Any]]:
    for page in ("", *PAGES):
        yield "ListRevalidation", wire.ListRevalidationRequest(page_id=page, all=bool(page))
        yield "ListPages", wire.ListPagesRequest(after=page)
        yield "GetPage", wire.GetPageRequest(page_id=page)
        yield "ListAttachments", wire.ListAttachmentsRequest(page_id=page)
    for tag in ("ab", "a_b", "AB", "é", "É", "%"):
        yield "ListPages", wire.ListPagesRequest(tag=tag)


def lists_of_memory() -> Iterator[tuple[str, Any]]:
    for tier in ("", "workspace", "account"):
        yield "ListMemory", wire.ListMemoryRequest(tier=tier, limit=9)
        yield from (("SearchMemory", wire.SearchMemoryRequest(tier=tier, query=words)) for words in SEARCHED)
    for channel in CHANNELS:
        yield "ListMemory", wire.ListMemoryRequest(tier="channel", owner=channel)
        yield "ListMemory", wire.ListMemoryRequest(namespace=["channel", channel or "c"], limit=5)
    for depth in (0, 1, 3):
        yield "ListMemoryNamespaces", wire.ListMemoryNamespacesRequest(max_depth=depth, prefix=["*"])


def answers(connection: sa.Connection) -> Iterator[tuple[str, Any, Any]]:
    """Every list and search of the service, with what it says."""
    for method, request in (*lists_of_turns(), *lists_of_pages(), *lists_of_memory()):
        try:
            yield method, request, reads.READS[method](connection, request)
        except NotFound as error:
            yield method, request, str(error)


def other_reads(connection: sa.Connection) -> Iterator[Any]:
    """What the runtime reads by itself, and what an agent's tools read."""
    yield [pages.search_pages(connection, words, limit=9) for words in SEARCHED]
    shelves = [memory.Shelf(tier="workspace", owner=""), *(memory.Shelf(tier="channel", owner=of) for of in CHANNELS)]
    yield memory.brief(connection, shelves)
    for shelf in shelves:
        yield [memory.read(connection, shelf, oldest=oldest) for oldest in (False, True)]
        yield memory.whole(connection, shelf)
    yield [revalidation.derived_from(connection, page) for page in PAGES]
    yield [(deviations.open_on(connection, page), revalidation.links_of(connection, page)) for page in PAGES]
    yield mail.owed(connection), mail.waiting_deliveries(connection)
    yield [mail.handoffs_of(connection, turn) for turn in TURNS]
    yield turn_reads.unfinished_turns(connection), turn_reads.events_after(connection, 3)
    yield turn_reads.detailed_events_after(connection, 3)
    yield [turn_reads.open_interrupts(connection, thread) for thread in CHANNELS]
    yield [turn_reads.newest_visible(connection, channel) for channel in CHANNELS]


@pytest.mark.parametrize("seed", range(3))
def test_every_list_and_search_answers_the_same(pair: tuple[Database, Database], seed: int) -> None:
    draw = Draw(seed)
    for table in TABLES:
        rows = rows_of(draw, table)
        for database in pair:  # in an order of its own: what a list does not order comes out otherwise
            mixed = draw.sample(rows, len(rows))
            database.submit(lambda c, table=table, rows=mixed: c.execute(sa.insert(table), rows).close()).result()

    in_file, on_server = (database.submit(lambda c: list(answers(c))).result() for database in pair)
    for (method, request, ours), (_, _, theirs) in zip(in_file, on_server, strict=True):
        assert ours == theirs, (method, request)
    for method in {method for method, _, _ in in_file}:
        found = [told for name, _, told in in_file if name == method and not isinstance(told, str)]
        assert max(told.ByteSize() for told in found) > 100, f"{method} has found nothing"

    in_file, on_server = (database.submit(lambda c: list(other_reads(c))).result() for database in pair)
    for ours, theirs in zip(in_file, on_server, strict=True):
        assert ours == theirs
