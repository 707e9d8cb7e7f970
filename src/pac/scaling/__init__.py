"""What a model costs, and what the paper published about it."""
