"""EPs in processes of their own: a compiler that crashes or hangs ends its process and
not the host's.

The core imports `epctx_isolation.proxy` for the session option `ep.isolate`.
"""
