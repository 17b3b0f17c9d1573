"""Turns reports into windows and windows into heat."""
