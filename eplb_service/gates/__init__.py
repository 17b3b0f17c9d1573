"""Judge whether a sound plan should run now, with reasons."""
