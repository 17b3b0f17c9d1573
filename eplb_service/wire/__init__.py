"""Translates between the messages of proto/eplb/v1 and the domain, and nothing else does.

Both directions of every word of the agents' stream: `up`, `down`. Decoding believes nothing:
lengths are checked before anything is allocated, enums and absent parts are refused by name.
It raises InvalidReport for a load report, InvalidOrder for an order that contradicts itself,
InvalidTable for a table, InvalidRequest for the rest.
"""
