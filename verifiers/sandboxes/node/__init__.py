"""Sandboxes of other machines: the daemon of a node, and the providers that reach one node or many."""
