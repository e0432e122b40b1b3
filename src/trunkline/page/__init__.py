"""The page: files that a browser gets as they are, served by `protocols/management`."""
