"""The vocabulary that client, server and tools share: dtypes, tensors, layouts, limits, problems.

Nothing here knows protobuf or gRPC; numpy is the only foreign package.
"""
