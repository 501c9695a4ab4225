"""Ids and constraints in, one pinned answer out."""
