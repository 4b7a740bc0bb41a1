"""`turnkeeper`, the program for people, for tests that run its commands in their own process."""

from turnkeeper import console

app = console.program()
