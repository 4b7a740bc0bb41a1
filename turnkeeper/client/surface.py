"""The Python client, for programs of users; Turnkeeper itself does not use it."""

from turnkeeper.config.surfaces import Surface

SURFACE = Surface(name="client")
