"""Runs the demonstration in a temporary home, and checks every claim: `python -m examples.demo`."""

import argparse
import sys
from importlib import import_module

from examples.demo.driver import end_in_good_order
from turnkeeper.errors import EXIT_INTERRUPTED, TurnkeeperError


def main() -> str | int:
    """Run the demonstration. Return 1 if a claim is false, or the reason if the demonstration cannot run."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="keep the temporary home, so that you can inspect it")
    on_several = (
        "use two runners and three runtimes that share a temporary PostgreSQL server, while some of them are killed"
    )
    parser.add_argument("--cluster", action="store_true", help=on_several)
    options = parser.parse_args()
    end_in_good_order()
    story = import_module(f"examples.demo.{'cluster' if options.cluster else 'story'}")
    try:
        return 0 if story.perform(keep=options.keep) else 1
    except TurnkeeperError as error:
        return f"error: {error}"
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
