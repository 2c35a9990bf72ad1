"""Tests of `godwit.figure3`."""
