"""Peers: the first agents of several homes work with each other."""

from turnkeeper.config.surfaces import Later, Panel, Process, Surface

SURFACE = Surface(
    name="peers",
    place=33,
    settings=("peers",),
    process=Process(
        name="peers",
        package="turnkeeper.constellation.peers",
        reads=frozenset({"node", "peers", "store"}),
        asks=frozenset({"agent-runtime"}),
    ),
    listens=lambda settings: {"peers": settings.peers.listen},
    offers={"keys": "turnkeeper.constellation.peers.pairing:listed"},
    commands={
        "peers": Later(
            "turnkeeper.constellation.peers.commands:app",
            "Pair with other homes, so that this one's first agent can work with theirs.",
            Panel.HOME,
        ),
    },
    needs=("terminals",),
)
