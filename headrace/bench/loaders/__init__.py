"""One file per loader: `versions()` (raises ImportError where it is not installed) and `prepare(scene)`, which
imports what the load needs and returns the load. Peers are imported by name: our type checker does not know them.
"""
