"""The placement controller: turns load into placements and placements into orders for ranks."""
