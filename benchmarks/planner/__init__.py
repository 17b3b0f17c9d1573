"""Measures the policies: how long they take, how even the load gets, how much they move."""
