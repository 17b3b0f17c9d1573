"""A deployment simulated from a seed: the real protocol machines under every kind of fault.

`chaos.simulate` runs one seed to its end; `world.World` can also be driven by hand.
"""
