"""Who watches the server: metrics, the live page, the audit log, traces."""
