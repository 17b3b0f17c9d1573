"""Draw placements from heat; untrusted, so whatever they return is checked."""
