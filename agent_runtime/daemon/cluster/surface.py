"""Stores that several machines share: the ownership of threads, and the hand-over of fires."""

from turnkeeper.config.surfaces import Surface

SURFACE = Surface(
    name="cluster",
    offers={
        "checks of machines": "turnkeeper.constellation.inspect.cluster:checks",
        "machines": "turnkeeper.constellation.inspect.cluster:shown",
        "findings of machines": "turnkeeper.constellation.inspect.cluster:findings",
        "cordon of all machines": "turnkeeper.storage.server.snapshot:is_cordoned",
        "copies of a database": "turnkeeper.storage.server.snapshot:copied_by",
        "lost end of a chain": "agent_runtime.daemon.cluster.losses:lost_end",
        "loss of a database": "agent_runtime.daemon.cluster.losses:found_loss",
        "missing numbers": "turnkeeper.storage.server.following:Holes",
        "settled numbers": "turnkeeper.storage.server.following:Settled",
        "shared-beat": "agent_runtime.daemon.cluster.parts:join",
        "shared-mailboxes": "agent_runtime.daemon.cluster.parts:open_mailboxes",
        "shared-checkpoints": "agent_runtime.graph.checkpointer.postgres:CheckpointDatabase",
        "shared-runner": "task_runner.dispatcher.shared:parts",
        "shared-rows": "task_runner.store.shared:Shared",
        "shared-snapshot": "turnkeeper.storage.server.snapshot:SharedSnapshot",
    },
    also=(
        "agent_runtime.graph.checkpointer.postgres",
        "agent_runtime.mailbox.shared",
        "task_runner.dispatcher.shared",
        "task_runner.store.shared",
        "turnkeeper.constellation.inspect.cluster",
        "turnkeeper.storage.server.following",
        "turnkeeper.storage.server.inboxes",
        "turnkeeper.storage.server.snapshot",
    ),
)
