"""Benchmarks: ratios measured in one run on this machine, with their spread."""
