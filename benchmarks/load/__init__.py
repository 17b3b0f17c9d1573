"""One controller under the load of many ranks: `make load`."""
