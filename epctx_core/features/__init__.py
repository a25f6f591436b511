"""Features: what not every compile or load needs, each in one place.

Each is a class over `epctx_core.sessions.stages.Stages`, whose table of features alone
names it.
"""
