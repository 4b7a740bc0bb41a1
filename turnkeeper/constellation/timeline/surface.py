"""The timeline: the events of the home, from every source, in order of time."""

from turnkeeper.config.surfaces import Later, Panel, Surface

SURFACE = Surface(
    name="timeline",
    place=31,
    commands={
        "events": Later(
            "turnkeeper.constellation.timeline.commands:events",
            "Print what happened in the home, in order of time, from every process, store and marker.",
            Panel.LOOK,
        ),
    },
)
