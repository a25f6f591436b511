"""Engines that compute on the CPU, their choice, and the matching of EPs' kernels to
nodes (`matching`).
"""
