"""Translates between admin.proto and the controller's views and requests, in both directions.

It lives here and not in `wire` because the views belong to the controller, which `wire` must not
know. The command line decodes with the same functions.
"""
