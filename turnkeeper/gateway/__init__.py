"""The gateway: a server for browsers and for existing clients. It is itself a client of both daemons."""
