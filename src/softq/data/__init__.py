"""Readers of files, and what stands in them."""
