"""EPs in processes of their own: a compiler that crashes or hangs ends its process and not the host's.

The core imports `isolated_class` where the session option `ep.isolate` asks for it.
"""
