"""Whether a category exists: the runtime's to say, asked while it is up."""

from task_runner.dispatcher.runtime_client import Runtime
from turnkeeper.clock import Clock
from turnkeeper.errors import InvalidInput, TurnkeeperError

_DEADLINE_S = 1.0
_KNOWN_FOR_S = 5.0


class Categories:
    """Checks categories against the runtime; remembers for a few seconds which exist, never which do not."""

    def __init__(self, runtime: Runtime, clock: Clock) -> None:
        """Take whom to ask."""
        self._runtime = runtime
        self._clock = clock
        self._known = frozenset[str]()
        self._asked_at = float("-inf")

    async def check(self, names: set[str]) -> list[str]:
        """Return a warning if the runtime cannot be asked. Raises InvalidInput for a category it does not know."""
        steady = self._clock.monotonic()
        if names <= self._known and steady - self._asked_at < _KNOWN_FOR_S:
            return []
        try:
            self._known = await self._runtime.categories(_DEADLINE_S)
        except TurnkeeperError:
            what = ", ".join(sorted(names))
            return [
                f"agent-runtime cannot be asked whether category {what} exists; an unknown one stops the task later"
            ]
        self._asked_at = steady
        if unknown := sorted(names - self._known):
            hint = f"known are: {', '.join(sorted(self._known)) or 'none'}"
            raise InvalidInput(f"unknown category {unknown[0]!r}", where="category", hint=hint)
        return []
