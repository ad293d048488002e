"""The command `opferry`, one module for each subcommand.

What a command needs is imported when it runs: `opferry --help` loads neither numpy nor grpc.
"""
