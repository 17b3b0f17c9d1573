"""Compiled loops over the arrays of layers; they know no placement and no request."""
