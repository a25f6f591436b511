"""Features, which few compiles and loads need, each in one place.

Each is a class over `epctx_core.sessions.stages.Stages`, whose table of features alone
names it.
"""
