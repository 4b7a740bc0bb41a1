"""Rehearsals of a proposed category on past turns."""

from turnkeeper.config.surfaces import Surface

SURFACE = Surface(name="rehearsal", offers={"categories rehearse": "agent_runtime.cli.rehearse:command"})
