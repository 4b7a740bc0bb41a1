"""The page in the browser."""

from turnkeeper.config.surfaces import Mount, Surface

SURFACE = Surface(name="page", place=28, mount=Mount("", "turnkeeper.gateway.page.application:surface"))
