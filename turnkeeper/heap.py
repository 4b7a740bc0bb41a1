"""Settling a daemon's heap once it is up, so that collecting garbage does not look at it again and again."""

import gc

_YOUNG = 10_000  # objects made before the youngest are looked at; Python's 700 is a pass every other fire


def settle_heap() -> None:
    """Take all that start-up made out of the collector's sight: modules, statements, settings stay for ever anyway.

    Otherwise a pass over some hundred thousand such objects falls, every now and then, into a due moment.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, 20, 20)
