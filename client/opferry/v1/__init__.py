"""Messages generated from protos/opferry/v1 by `make protos`; never edited."""
