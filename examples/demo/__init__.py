"""The demonstration: the whole product as a story that checks its own claims."""
