"""Maintenance of a home: back it up, restore, erase, move or migrate it; cordon, drain or forget a machine."""

from turnkeeper.config.surfaces import Panel, Surface, commands_in

_HOME = {
    "backup_commands:backup": (
        "Copy the home into a new directory, also while the daemons run: stores, envelopes, settings, keys; no logs."
    ),
    "backup_commands:restore": "Restore a backup as the home.",
    "erase_commands:erase": "Overwrite a person's texts wherever the home keeps them.",
    "move:move": (
        "Move the home to another directory, also on another disk: stop it, move it, and start it again if it ran."
    ),
    "migrate:migrate": "Move the home's data from files into a PostgreSQL database that several machines may share.",
    "cordon:cordon": "Let a machine take no new turns; turns that run there continue to their end.",
    "cordon:uncordon": "Let a machine take turns again.",
    "cordon:drain": "Cordon a machine, and wait until no turn runs there.",
    "migrate:forget": "Remove a machine for good from the list of machines that share a database.",
}
_COMMANDS = commands_in("turnkeeper.constellation.upkeep", {Panel.HOME: _HOME})
SURFACE = Surface(
    name="upkeep",
    place=32,
    commands=_COMMANDS,
    offers={"findings": "turnkeeper.constellation.upkeep.cordon:findings"},
)
