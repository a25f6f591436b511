"""`verify_model`: every check of a model that needs no device; all findings, never only
the first.
"""
