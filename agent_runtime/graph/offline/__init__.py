"""The model that needs no key and no network: rules that do the job of each shipped category by quoting texts."""
