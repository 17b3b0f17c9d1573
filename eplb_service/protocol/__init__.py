"""The two ends of a migration as pure machines, and what the ranks agree on.

`rank` runs beside the forward pass, `wave` in the controller, `agreement` is the
vector that ranks reduce. Simulator and production run this very code.
"""
