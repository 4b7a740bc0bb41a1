"""`python -m task_runner` is `task-runner`."""

import sys

from task_runner.cli import main

if __name__ == "__main__":
    sys.exit(main())
