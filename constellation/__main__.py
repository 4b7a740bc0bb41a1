"""`python -m constellation` is the `turnkeeper` command."""

from constellation.cli import main

main()
