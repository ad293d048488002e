"""The opferry server: a front process that owns the network, and workers that own the devices."""
