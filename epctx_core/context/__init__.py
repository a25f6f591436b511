"""The EPContext operator and its files: node codec, names, payloads, manifest,
paths.
"""
