"""The demonstration: a story that shows the whole product and checks its own claims."""
