"""Small layers with proved optima."""
