"""What every model is asked, and for how many tokens."""

PROMPTS = (
    "The experts of this layer are",
    "A token goes to two of eight",
    "0123456789",
    "Balance is not",
    "zzzzzzzzzzzz",
    "Once upon a midnight",
)
NUM_TOKENS = 24
