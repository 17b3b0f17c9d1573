"""Measures what an agent that has nothing to do costs a step."""
