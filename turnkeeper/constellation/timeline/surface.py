"""The timeline: what happened in the home, from every source, in order of time."""

from turnkeeper.config.surfaces import Later, Panel, Surface

SURFACE = Surface(
    name="timeline",
    place=31,
    commands={
        "events": Later(
            "turnkeeper.constellation.timeline.commands:events",
            "Print what happened in the home, in order of time, as every process, store and marker tells it.",
            Panel.LOOK,
        ),
    },
)
