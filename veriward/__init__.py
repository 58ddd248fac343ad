"""The few public names, and the command line."""
