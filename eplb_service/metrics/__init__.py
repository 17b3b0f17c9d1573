"""What the controller exports about its deployments."""
