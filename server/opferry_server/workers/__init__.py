"""Worker processes: the supervisor in the front, the child, their messages, the shared memory."""
