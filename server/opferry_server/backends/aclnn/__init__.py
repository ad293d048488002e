"""The aclnn backend: CANN's two-stage operator calls through ctypes, without torch."""
