"""The settings of one agent."""
