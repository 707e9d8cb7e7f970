"""Self-improvement: rounds of collect -> mix -> train -> evaluate -> promote or roll back, as the paper's RLFT.

`settings` reads the recipe, `data` says what a round trains on, `gate` decides, `loop` goes round, `record` is what is
left on disk, `cli` is `pac improve`. docs/improve.md tells the rules.
"""
