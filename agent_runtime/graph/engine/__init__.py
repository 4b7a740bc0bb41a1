"""Running of intervals of any graph. This package knows threads, checkpoints and messages, but not the turn table."""
