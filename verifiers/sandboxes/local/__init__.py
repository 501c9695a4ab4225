"""Sandboxes on this machine: namespaces through bubblewrap, or what else the machine gives."""
