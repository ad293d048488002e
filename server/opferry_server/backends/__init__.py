"""Backends: what runs operators. The worker process opens exactly one, by name or import path."""
