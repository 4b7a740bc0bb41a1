"""Reading of public web pages: addresses are checked before any connection, pages are turned into text."""
