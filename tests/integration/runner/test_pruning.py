"""Old history goes in bounded batches, and one entry says what range it was."""

from datetime import timedelta

from sqlalchemy import Connection, text

from task_runner.scheduler.pruner import Pruner, prune_batch
from tests.integration.runner.conftest import Rig
from tests.integration.runner.scripted_runtime import Peer, State
from turnkeeper.constellation.audit import verify
from turnkeeper.constellation.audit.records import chains_of, differences
from turnkeeper.v1 import schedules_pb2 as wire

KEEP = timedelta(days=90)


class NoWait:
    """The rig's clock, on which waiting takes no time."""

    def __init__(self, clock) -> None:
        self.now = clock.now

    async def sleep(self, seconds: float) -> None:
        return


def pruner(rig: Rig) -> Pruner:
    return Pruner(rig.store, clock=NoWait(rig.clock), log=rig.trail, keep=KEEP)


async def turns(rig: Rig, peer: Peer, count: int) -> None:
    async with rig.running():
        for _ in range(count):
            settled = len(rig.trail.named("fire.settled"))
            await rig.pass_time(60)
            await rig.trail.saw("fire.accepted", settled + 1)
            await peer.play(peer.received[-1].fire_id, State.SUCCEEDED)
            await rig.trail.saw("fire.settled", settled + 1)


async def test_what_is_older_than_is_kept_becomes_one_entry_of_its_range(rig: Rig, peer: Peer) -> None:
    peer.now = rig.clock.now
    await rig.create(catch_up="skip")
    await turns(rig, peer, 5)
    await rig.service.run_task(wire.RunTaskRequest(name="digest", request_id="open"))
    await rig.pass_time(330)
    assert await pruner(rig).pass_over() == 0, "all of it is young"
    rig.clock.advance(91 * 86_400)
    assert await pruner(rig).pass_over() == 5
    history = await rig.history()
    assert history == [("pruned", "", 10), ("pending", "", 1)], "what is open stays, however old"
    answer = await rig.service.explain_fire(wire.ExplainFireRequest(name="digest", at="2026-03-02T09:03:00Z"))
    assert answer.verdict == "pruned"
    assert "10 scheduled times from 2026-03-02T09:01:00Z to 2026-03-02T09:10:00Z" in " ".join(answer.lines)
    await rig.loop.tick()
    rig.clock.advance(91 * 86_400)
    await rig.loop.tick()
    assert [entry[0] for entry in await rig.history()].count("skipped") <= 1
    await pruner(rig).pass_over()
    covered = [each for each in await rig.history() if each[0] in {"pruned", "skipped"}]
    assert len([each for each in covered if each[0] == "pruned"]) == 1, "one entry, which grows"
    task = await rig.store.run(lambda session: session.tasks.named(["digest"])["digest"])
    minutes = (task.cursor_at - task.created_at) // timedelta(minutes=1)
    assert sum(count for _, _, count in covered) == minutes, "every nominal time is still covered once"


async def test_a_skip_never_extends_an_entry_that_took_a_pruned_ones_number(rig: Rig, peer: Peer) -> None:
    await rig.create(catch_up="skip")
    await rig.pass_time(630)
    await rig.service.run_task(wire.RunTaskRequest(name="digest", request_id="one"))
    rig.clock.advance(60)
    await rig.service.pause_task(wire.PauseTaskRequest(name="digest"))
    await rig.service.resume_task(wire.ResumeTaskRequest(name="digest"))
    rig.clock.advance(91 * 86_400)
    await pruner(rig).pass_over()
    await rig.service.run_task(wire.RunTaskRequest(name="digest", request_id="two"))

    def tail(session):
        (snapshot,) = session.tasks.snapshots([session.tasks.named(["digest"])["digest"].id])
        return snapshot.tail

    assert await rig.store.run(tail) is None


async def test_nothing_is_pruned_beyond_an_entry_that_stays(rig: Rig, peer: Peer) -> None:
    peer.now = rig.clock.now
    await rig.create(overlap="queue", catch_up="run-all")
    await turns(rig, peer, 3)
    opened = await rig.store.run(lambda session: session.fires.numbered(0, 9)[1])
    rig.clock.advance(91 * 86_400)

    def with_the_second_kept(session) -> int:
        before = rig.clock.now() - KEEP
        session.fires.update(
            [
                opened.__class__(
                    **{name: getattr(opened, name) for name in opened.__slots__} | {"ended_at": rig.clock.now()}
                )
            ]
        )
        return prune_batch(session, before, 0).removed

    assert await rig.store.run(with_the_second_kept) == 0
    assert await rig.history() == [("pruned", "", 1), ("succeeded", "", 1), ("succeeded", "", 1)]


async def test_a_batch_is_bounded(rig: Rig, peer: Peer) -> None:
    peer.now = rig.clock.now
    await rig.create()
    await turns(rig, peer, 5)
    rig.clock.advance(91 * 86_400)
    before = rig.clock.now() - KEEP
    first = await rig.store.run(lambda session: prune_batch(session, before, 0, limit=2))
    assert (first.removed, first.reached) == (1, 2)
    assert [entry[2] for entry in await rig.history()] == [2, 1, 1, 1]
    second = await rig.store.run(lambda session: prune_batch(session, before, 2, limit=2))
    assert (second.removed, second.reached) == (2, 4)
    assert [entry[2] for entry in await rig.history()] == [4, 1]


async def test_records_of_what_was_pruned_leave_their_hashes_and_the_chain_stays_whole(rig: Rig, peer: Peer) -> None:
    peer.now = rig.clock.now
    await rig.create(catch_up="skip")
    await turns(rig, peer, 5)
    assert await checked(rig) == ([], 0, 6)
    rig.clock.advance(91 * 86_400)
    await pruner(rig).pass_over()
    shared = rig.store.is_shared
    gone = 5 if shared else 6  # the beginning of a machine's chain says whose it is
    assert await checked(rig) == ([], gone, 7), "five outcomes and the beginning; the rest tells of the pruning"
    table = "audit_records" if shared else "audit"
    await rig.store.transact(lambda connection: connection.execute(text(f"UPDATE {table} SET body = NULL")))
    ((fault, *others), *_) = await checked(rig)
    assert fault.endswith(": record 1 lost its content, and no record says that it was pruned")
    assert others == []


async def checked(rig: Rig) -> tuple[list[str], int, int]:
    """Return what is wrong with the records, how many have no content, and how many there are."""

    def check(connection: Connection) -> tuple[list[str], int, int]:
        driver = connection.connection.driver_connection
        lines = list(chains_of(driver, "task-runner"))
        faults = [*verify.check(lines).faults, *differences(driver, "task-runner")]
        found = [line["record"]["body"] for line in lines if "record" in line]
        return faults, found.count(None), len(found)

    return await rig.store.transact(check)
