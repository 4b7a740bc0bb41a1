"""The interface for ids and randomness, and the only module that draws them."""

import random
import secrets
from typing import Protocol


class Entropy(Protocol):
    """The source of ids and jitter. A simulation passes a source with a seed."""

    def hex(self, digits: int) -> str:
        """Return `digits` unpredictable lower-case hexadecimal digits."""

    def uniform(self, low: float, high: float) -> float:
        """Return a float in [low, high]."""


class SystemEntropy:
    """The operating system's randomness."""

    def hex(self, digits: int) -> str:
        return secrets.token_hex((digits + 1) // 2)[:digits]

    def uniform(self, low: float, high: float) -> float:
        return random.uniform(low, high)  # noqa: S311  spreads retries and protects nothing
