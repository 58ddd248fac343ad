"""Ask: tasks, and how a reply to one is verified."""
