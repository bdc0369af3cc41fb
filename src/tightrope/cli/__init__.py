"""The command line: one file a command, imported only when its word is typed."""
