"""Cases (a model, its inputs, its expected outputs) on routes through epctx, in child
processes.
"""
