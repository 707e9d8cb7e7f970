"""`pac demo`: poor data, four methods, a table and a page, in minutes; `cli` is the command."""
