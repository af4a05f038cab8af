"""The version, in a module of its own so that it can be read without importing torch."""

__version__ = "0.4.0"
