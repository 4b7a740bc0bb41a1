"""`python -m turnkeeper.constellation` is the `turnkeeper` command."""

import sys

from turnkeeper.console import main

sys.exit(main())
