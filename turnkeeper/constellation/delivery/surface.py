"""Delivery: results of tasks and open questions reach people."""

from turnkeeper.config.surfaces import Later, Panel, Process, Surface

SURFACE = Surface(
    name="delivery",
    place=34,
    settings=("delivery",),
    process=Process(
        name="delivery",
        package="turnkeeper.constellation.delivery",
        reads=frozenset({"delivery", "store", "web"}),
        asks=frozenset({"task-runner", "agent-runtime"}),
    ),
    offers={
        "webhook of a run": "turnkeeper.constellation.delivery.targets:check_run",
        "findings of daemons": "turnkeeper.constellation.delivery.fire_deliveries:findings",
        "failing deliveries": "turnkeeper.constellation.delivery.fire_deliveries:findings",
        "deliveries of a fire": "turnkeeper.constellation.delivery.fire_deliveries:sentences",
        "deliveries of fires": "turnkeeper.constellation.delivery.fire_deliveries:states",
    },
    commands={
        "deliver": Later(
            "turnkeeper.constellation.delivery.commands:app",
            "Deliver results and questions of tasks to people: by a command, a webhook, e-mail or a chat.",
            Panel.WORK,
        ),
    },
    needs=("web-reader",),
)
