"""The store whose log is this process's memory."""
