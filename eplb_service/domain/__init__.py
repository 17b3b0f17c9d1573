"""The nouns of the control plane, their numbers and the rules of soundness.

Everything here is a value or a pure function of values. Nothing here plans,
decides or talks to anybody.
"""
