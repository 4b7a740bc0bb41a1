"""The reference pages, `docs/reference/*.md`, as the program defines them. `make reference` writes them."""
