"""Attention in the benchmark: cases, what is right, and how every library does it."""
