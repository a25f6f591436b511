"""The compile cache: each model is compiled once for its EPs and options, whoever asks and however often.

Owns keys, entries, locks and the size limit of a cache folder. Knows how a compile and a session are asked for,
and nothing of what they do.
"""
