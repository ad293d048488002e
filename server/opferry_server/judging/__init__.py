"""Validation on the server: inputs made, goldens computed and outputs judged beside the device."""
