"""The operations that stages need, once per kind of device. `cpu` is the specification."""
