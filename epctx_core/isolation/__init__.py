"""EPs in processes of their own: a compiler that crashes or hangs ends its process and not the host's.

To the rest of the core an isolated EP is a class like any other, whose hooks are answered elsewhere
(`provider`). Knows neither compiles nor sessions.
"""
