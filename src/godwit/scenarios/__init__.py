"""Scenarios of the simulator: TOML files, and from them runs, reports and pictures."""
