"""Engines that compute on the CPU, and their choice."""
