"""Ids and jitter from a seed."""

import random  # noqa: TID251  seeded, so that a run can be repeated


class SeededEntropy:
    """Reproducible ids and jitter, for simulations and tests."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def hex(self, digits: int) -> str:
        """Return the next `digits` hexadecimal digits of the seed's sequence."""
        return f"{self._random.getrandbits(4 * digits):0{digits}x}"

    def uniform(self, low: float, high: float) -> float:
        """Return the next float of the seed's sequence in [low, high]."""
        return self._random.uniform(low, high)
