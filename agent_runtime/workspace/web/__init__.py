"""Reading the public web: addresses that are checked before they are connected to, pages turned into text."""
