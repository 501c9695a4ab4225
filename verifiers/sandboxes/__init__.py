"""Isolated execution of code that a model wrote: one interface, several providers."""
