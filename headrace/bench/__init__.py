"""Measuring loaders beside each other: `headrace bench load` starts a fresh process for each run.

What runs in a peer's Python (`child`, `scene`, `meter` and the peer's own file in `loaders`) needs the standard
library and the peer alone: that environment holds nothing of ours.
"""
