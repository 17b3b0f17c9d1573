"""The agent beside one rank: reports load, carries out orders, never makes a step wait."""
