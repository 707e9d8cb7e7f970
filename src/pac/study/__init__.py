"""Studies: rows of settings compared over seeds, on the same trials, in one table with intervals."""
