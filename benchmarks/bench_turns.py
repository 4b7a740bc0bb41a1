"""Turns a second: LangGraph without a checkpointer, with its stock saver, with ours, and our whole runtime.

All savers sync at every commit, and LangGraph waits for them between supersteps. Each round runs all four in turn, so
that a ratio compares neighbours in time. `python -m benchmarks.bench_turns` prints one JSON document.
"""

import asyncio
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks import agents

ROUNDS = 5
WORK = ((1, 40), (8, 120), (64, 256))  # at once, turns
KINDS: dict[str, Callable[[], Any]] = {
    "none": agents.without_saver,
    "stock": agents.on_stock_saver,
    "saver": agents.on_our_saver,
    "whole": agents.on_our_runtime,
}


async def rate(kind: str, at_once: int, turns: int) -> float:
    """Return turns a second, so many at once, each on a thread of its own."""
    async with KINDS[kind]() as agent:
        await agent.turn(turns)  # the first of a process pays for what the others find ready
        numbers = iter(range(turns))

        async def client() -> None:
            for number in numbers:
                await agent.turn(number)

        begun = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(at_once)))
        return turns / (time.perf_counter() - begun)


def measure(rounds: int = ROUNDS, kinds: tuple[str, ...] = tuple(KINDS)) -> list[dict[str, Any]]:
    """Return for each concurrency the rates of each kind and the ratios to the stock saver's, round by round."""
    results = []
    for at_once, turns in WORK:
        rates: dict[str, list[float]] = {kind: [] for kind in kinds}
        for number in range(rounds):
            print(f"turns, {at_once} at once: round {number + 1} of {rounds}", flush=True)
            for kind in kinds:
                rates[kind].append(asyncio.run(rate(kind, at_once, turns)))
        ratios = {
            kind: [ours / stock for ours, stock in zip(rates[kind], rates["stock"], strict=True)]
            for kind in kinds
            if kind != "stock"
        }
        results.append({"at_once": at_once, "turns": turns, "rates": rates, "ratios": ratios})
    return results


def rows(results: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return the results as rows of a table: medians, least and greatest."""
    return [
        (
            str(result["at_once"]),
            *(spread(result["rates"][kind], 0) for kind in ("none", "stock", "saver", "whole")),
            *(spread(result["ratios"][kind], 2) for kind in ("saver", "whole")),
        )
        for result in results
    ]


def gates(results: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Return the ratios to the stock saver's, by the gate that they are for."""
    kinds = {"whole": "whole turns", "saver": "checkpointer alone"}
    return {
        f"{said} {result['at_once']} at once, ours / stock saver": result["ratios"][kind]
        for result in results
        for kind, said in kinds.items()
    }


def spread(values: list[float], digits: int) -> str:
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


HEADER = ("at once", "no saver", "stock saver", "our saver", "whole runtime", "our saver / stock", "whole / stock")
if __name__ == "__main__":
    found = measure()
    print(json.dumps(found, indent=2))
    for line in (HEADER, *rows(found)):
        print(" | ".join(line))
