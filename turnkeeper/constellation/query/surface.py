"""Questions in SQL on a snapshot of the home, and a page with plots."""

from turnkeeper.config.surfaces import Later, Panel, Surface

SURFACE = Surface(
    name="query",
    place=31,
    settings=("query",),
    needs=("timeline",),
    commands={
        "query": Later(
            "turnkeeper.constellation.query.commands:query",
            "Answer a question in SQL on a snapshot of the home: tasks, fires, turns, approvals, restarts and more.",
            Panel.LOOK,
        ),
        "report": Later(
            "turnkeeper.constellation.query.report_commands:report",
            "Write one page with plots: fires by outcome, lateness, turns, tokens, approvals, restarts.",
            Panel.LOOK,
        ),
    },
)
