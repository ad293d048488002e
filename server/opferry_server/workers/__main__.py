"""Runs one worker: `python -m opferry_server.workers`, started by the supervisor only."""

from opferry_server.workers.child import main

if __name__ == "__main__":
    main()
