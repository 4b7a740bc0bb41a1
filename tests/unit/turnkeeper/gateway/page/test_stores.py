"""What the page reads in a store by itself."""

import sqlite3
from contextlib import closing

from agent_runtime.store.schema import candidates, deviations, interrupts, turns
from turnkeeper.config.home import Home
from turnkeeper.gateway.page import stores

MANY = stores.MOST_DECIDED + 5


def test_the_newest_decisions_of_each_kind_are_read_and_no_more(home: Home) -> None:
    with closing(sqlite3.connect(home.agent_db)) as store:
        for table in (turns, interrupts, candidates, deviations):
            store.execute(f"CREATE TABLE {table.name} ({', '.join(column.name for column in table.c)})")
        store.execute("INSERT INTO turns (turn_id, task_name) VALUES ('t1', 'digest')")
        row = "INSERT INTO interrupts (turn_id, kind, status, tool, question, decision, decided_by, message, resolved_at_us)"
        asked = [("permission", "resolved", "put", number) for number in range(MANY)]
        asked += [
            ("pause", "resolved", "", MANY),
            ("permission", "pending", "put", None),
            ("permission", "void", "put", MANY),
        ]
        for kind, status, tool, at in asked:
            store.execute(
                f"{row} VALUES ('t1', ?, ?, ?, 'Which?', 'approve', 'gateway/web', '', ?)", (kind, status, tool, at)
            )
        store.execute(f"{row} VALUES ('t1', 'question', 'resolved', '', 'Which?', 'answer', 'a/cli', 'this', {MANY})")
        for table, name in ((candidates, "title"), (deviations, "page_id")):
            decided = (
                f"INSERT INTO {table.name} ({name}, lifecycle, decided_by, decided_at_us, note, task_name, turn_id)"
            )
            store.execute(f"{decided} VALUES ('garden', 'kept', 'a/cli', {MANY + 1}, 'why', 'digest', 't1')")
            store.execute(f"{decided} VALUES ('open', 'open', '', NULL, '', 'digest', 't1')")
        store.commit()
    found = stores.decisions(home, "")
    assert len(found) == stores.MOST_DECIDED
    assert [one.about for one in found[:4]] == ["garden", "garden", "Which?", "put"]
    assert found[2] == stores.Decided("Which?", "answer", "a/cli", MANY, "this", "digest", "t1")
    assert [one.at_us for one in found] == sorted((one.at_us for one in found), reverse=True)
