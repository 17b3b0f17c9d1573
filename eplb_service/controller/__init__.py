"""The main floor: decides when. Owns its ports; does no I/O of its own."""
