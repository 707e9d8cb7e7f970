"""Self-improvement in rounds: collect, train, evaluate, promote or go back. The paper calls it RLFT.

`settings` reads the recipe, `loop` runs the rounds, `data` makes the training run of a round, `gate` decides about
promotion, and `folder` keeps everything on disk. docs/improve.md has the rules.
"""
