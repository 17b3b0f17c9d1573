"""The demo and the measurements; not part of the distribution."""
