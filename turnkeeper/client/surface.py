"""The Python client, for programs of others; nothing of ours uses it."""

from turnkeeper.config.surfaces import Surface

SURFACE = Surface(name="client")
