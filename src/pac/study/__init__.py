"""Studies: rows of settings, trained with several seeds and evaluated from the same initial states.

`plan` reads the file, `folder` knows what is finished, `runner` does the rest, `results` compares the rows.
"""
