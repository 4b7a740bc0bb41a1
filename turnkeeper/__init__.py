"""The base package: the only code that the processes share. The package does not depend on schedules or graphs."""

__version__ = "0.1.0"
