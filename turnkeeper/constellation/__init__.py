"""The constellation: the processes as a whole. It knows them by argv, health, files and the wire alone."""
