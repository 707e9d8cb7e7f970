"""Scripts that make this repository's own pages and result files. They are not part of the wheel."""
