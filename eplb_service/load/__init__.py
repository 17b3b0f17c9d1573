"""From cumulative counters to heat: what was measured, over which steps, and by how many ranks.

Nothing here decides whether a plan is due; the gates do.
"""
