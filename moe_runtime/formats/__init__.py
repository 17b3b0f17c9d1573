"""The formats of expert weights: how each is packed and what it stands for."""
