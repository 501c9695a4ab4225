"""Tokens as text, and rates."""
