"""What an expert computes."""
