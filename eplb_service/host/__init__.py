"""The roof: puts the parts together and runs them, on Ray or as a plain process.

The only room that imports ray.
"""
