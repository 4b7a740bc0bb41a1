"""The model that needs no key and no network. Its rules do the job of each shipped category by quoting texts."""
