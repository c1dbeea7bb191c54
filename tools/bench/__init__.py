"""Measurements of the whole system; each module is a command, `python -m tools.bench.NAME --help`."""
