"""The constellation: all processes together. This package knows them only by argv, health, files and RPC calls."""
