"""The demo: eight ranks serve a small model of Kimi K3's shape while its experts are balanced."""
