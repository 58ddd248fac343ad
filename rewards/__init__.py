"""Judge: verdicts, and how a reward is composed of them."""
