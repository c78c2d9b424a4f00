"""The commands with their options and help. Each leaves the work to a module imported when it is needed."""
