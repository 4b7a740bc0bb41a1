"""The gateway: a server for browsers and for existing clients, itself a client of both daemons."""
