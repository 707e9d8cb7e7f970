"""Self-improvement: rounds of collect -> mix -> train -> evaluate -> promote or roll back, as the paper's RLFT.

`settings` reads the recipe, `loop` goes round: `acting` collects and tries, `data` says what a round trains on, `gate`
decides. `record` is what is left on disk, `telling` what the console says, `cli` is `pac improve`.
docs/improve.md tells the rules.
"""
