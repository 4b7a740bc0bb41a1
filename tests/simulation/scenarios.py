"""Scripts that broke a promise once, or aim at a point where one is easily broken. Each must come to its end well."""

from tests.simulation.script import RUNNER, RUNTIME, Fault, Script, Task

_BUSY = (
    Task("often", 20, "run-all"),
    Task("queues", 20, "run-once", "queue"),
    Task("coalesces", 60, "skip", "coalesce"),
)

SCENARIOS: dict[str, Script] = {
    # A failure undid a savepoint with its whole transaction; the error of the second failure hid that of the machine.
    "every second write of the runtime fails for a while": Script(
        seed=325,
        tasks=_BUSY,
        faults=(
            Fault(at=20.5, kind="writes", process=RUNTIME, seconds=6.0, number=2, what="ENOSPC"),
            Fault(at=40.5, kind="writes", process=RUNTIME, seconds=6.0, number=2, what="EIO"),
            Fault(at=60.5, kind="writes", process=RUNTIME, seconds=6.0, number=3, what="ENOSPC"),
        ),
        faulty_s=80.0,
        fails=0.0,
        works_s=60.0,
    ),
    # Each try of a turn needs about twenty writes, so each fails; the write that gives up needs fewer. If the failures of
    # the machine count as the turn's, a healthy fire is quarantined after five tries.
    "the runtime accepts fires, and each try of a turn meets a failure": Script(
        seed=333,
        tasks=_BUSY,
        faults=(
            Fault(at=20.5, kind="stores", process=RUNTIME, seconds=8.0, number=22, what="EIO"),
            Fault(at=40.5, kind="stores", process=RUNTIME, seconds=8.0, number=26, what="ENOSPC"),
        ),
        faulty_s=60.0,
        fails=0.0,
        works_s=60.0,
    ),
    # A part of the runner met an error of the disk that it did not recognise, and the process ended.
    "writes of the runner fail, now and then and all": Script(
        seed=1,
        tasks=_BUSY,
        faults=(
            Fault(at=20.5, kind="writes", process=RUNNER, seconds=6.0, number=2, what="EIO"),
            Fault(at=40.5, kind="writes", process=RUNNER, seconds=6.0, number=1, what="ENOSPC"),
        ),
        faulty_s=60.0,
        fails=0.0,
        works_s=60.0,
    ),
    # Fires are lost on their way, and are sent again; receipts and outcomes are lost, so that accepted fires come twice.
    "fires, receipts and outcomes are lost": Script(
        seed=2,
        tasks=_BUSY,
        faults=(
            Fault(at=19.0, kind="lose", number=3, what="to FireBatches"),
            Fault(at=39.0, kind="lose", number=3, what="FireBatches"),
            Fault(at=39.0, kind="lose", number=40, what="WatchTurns"),
            Fault(at=59.0, kind="lose", number=3, what="FireBatches"),
            Fault(at=62.0, kind="crash", process=RUNTIME, seconds=1.0),
            Fault(at=79.0, kind="lose", number=3, what="WatchTurns"),
        ),
        faulty_s=90.0,
        fails=0.0,
        works_s=60.0,
    ),
}
