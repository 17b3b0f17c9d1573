"""The agent's loop, in a thread of its own, with mailboxes to the step side."""
