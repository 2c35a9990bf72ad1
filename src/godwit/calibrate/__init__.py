"""Measuring a running cluster: what to measure (`plan`), measuring (`run`), constants from it (`build`)."""
