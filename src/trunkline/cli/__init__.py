"""The command line: `trunkline …`, also as `python -m trunkline`.

Each command is a module that is imported when it is called, so that `trunkline --help` starts at once. Commands write
results to stdout (a table on a terminal, plain columns in a pipe, JSON with `--json`) and remarks to stderr. What goes
wrong is one line with a hint: exit code 1, or 2 for a command that was written wrongly.
"""
