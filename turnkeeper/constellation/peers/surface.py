"""Peers: the first agents of several homes work with each other."""

from turnkeeper.config.surfaces import Later, Panel, Surface

SURFACE = Surface(
    name="peers",
    place=33,
    commands={
        "peers": Later(
            "turnkeeper.constellation.cli.peers:app",
            "Pair with other homes, so that this one's first agent can work with theirs.",
            Panel.HOME,
        ),
    },
)
