"""Turns an engine's counters into load reports."""
