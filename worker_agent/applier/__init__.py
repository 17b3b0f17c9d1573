"""The shell around the rank machine: orders in, words out."""
