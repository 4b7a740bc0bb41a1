"""The LangGraph API, for LangGraph's own clients."""

from turnkeeper.config.surfaces import Mount, Surface

SURFACE = Surface(name="lg", place=27, mount=Mount("/lg", "turnkeeper.gateway.lg.application:surface"))
