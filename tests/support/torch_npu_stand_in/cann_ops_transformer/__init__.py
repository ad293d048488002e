"""A stand-in for cann_ops_transformer: not CANN's package. See README.md beside it."""

__version__ = "0+stand-in"
