"""The model that needs no key and no network: rules that do each shipped category's job by extractive means."""
