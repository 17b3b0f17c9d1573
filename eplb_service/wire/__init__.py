"""Translates between the messages of proto/eplb/v1 and the domain, and nothing else does."""
