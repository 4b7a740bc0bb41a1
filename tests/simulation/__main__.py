"""Runs scripts of seeds: `python -m tests.simulation --seeds 0:100 [--faults crash,writes] [--minutes 5] [--trace FILE]`.

Exits with 1 if a seed fails. Of each failing seed it prints the smallest script that fails too, as Python: paste it into
`tests/simulation/scenarios.py` to keep it.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

from tests.simulation.replay import replay, written
from tests.simulation.script import KINDS, Script, drawn, smallest
from tests.simulation.world import Outcome, memory, run


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def tell(outcome: Outcome) -> None:
    """Print what is wrong with a run."""
    for found in outcome.violations[:12]:
        say(f"    {found.invariant}: {found.what[:1500]}")
    if len(outcome.violations) > 12:
        say(f"    and {len(outcome.violations) - 12} more")


def reduced(script: Script, outcome: Outcome, most: int) -> Outcome:
    """Return a run of the smallest script that breaks one of the same promises."""
    broken = {found.invariant for found in outcome.violations}
    found = smallest(script, lambda one: bool(broken & {each.invariant for each in run(one).violations}), most=most)
    return run(found)


def main(argv: list[str]) -> int:
    """Run the seeds; return 1 if one failed."""
    parser = argparse.ArgumentParser(prog="tests.simulation", description="the two daemons in virtual time, by seeds")
    parser.add_argument("--seeds", default="0:20", help="A:B, without B")
    parser.add_argument("--faults", default=",".join(KINDS), help="the kinds of faults, with commas")
    parser.add_argument("--minutes", type=float, default=5.0, help="virtual minutes of faults")
    parser.add_argument("--between", type=float, default=7.0, help="virtual seconds between two faults, on average")
    parser.add_argument("--works", type=float, default=90.0, help="virtual seconds that tasks run after the faults")
    parser.add_argument("--reduce", type=int, default=60, help="the most runs to find the smallest script")
    parser.add_argument("--trace", type=Path, help="write the logs of the seeds into this file")
    parser.add_argument(
        "--replay", action="store_true", help="run each seed in two new processes and compare their logs"
    )
    given = parser.parse_args(argv)
    first, _, last = given.seeds.partition(":")
    kinds = given.faults.split(",")
    if not first.isdecimal() or not last.isdecimal() or not set(kinds) <= set(KINDS):
        parser.error(f"--seeds is A:B, and --faults some of {','.join(KINDS)}")
    if given.replay:
        options = [f"--{name}={getattr(given, name)}" for name in ("faults", "minutes", "between", "works")]
        return bool(replay(range(int(first), int(last)), options, memory(), say))
    bad, counts, logs = 0, Counter[str](), list[str]()
    for seed in range(int(first), int(last)):
        script = drawn(seed, minutes=given.minutes, kinds=kinds, between_s=given.between, works_s=given.works)
        outcome = run(script, keep=given.trace is not None)
        counts += outcome.counts
        drew = Counter(fault.kind for fault in script.faults)
        say(
            f"{seed} {outcome.trace[:16]} {'WRONG' if outcome.violations else 'well'}: "
            + ", ".join(f"{drew[kind]} {kind}" for kind in sorted(drew))
        )
        logs += outcome.lines
        if outcome.violations:
            bad += 1
            tell(outcome)
            if given.reduce:
                say("the smallest script that fails:")
                least = reduced(script, outcome, given.reduce)
                say(least.script.text())
                tell(least)
                say("    what the daemons await:")
                for line in least.stuck:
                    say(f"      {line}")
    if given.trace is not None:
        given.trace.write_bytes(written(logs))
    say(
        f"{int(last) - int(first)} seeds, {bad} wrong; "
        + ", ".join(f"{counts[what]} {what}" for what in sorted(counts))
    )
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
