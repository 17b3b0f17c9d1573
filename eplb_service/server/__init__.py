"""The gRPC face of the controller: agents' streams and the admin service."""
