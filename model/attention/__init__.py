"""Attention: one formula, several implementations, chosen by name at run time."""
