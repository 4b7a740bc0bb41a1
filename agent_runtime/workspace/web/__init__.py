"""Reading of public web pages. Addresses are checked before any connection, and pages are converted to text."""
