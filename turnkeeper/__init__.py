"""The leaf package: the only code that the processes share. The package knows nothing of schedules or graphs."""

__version__ = "0.1.0"
