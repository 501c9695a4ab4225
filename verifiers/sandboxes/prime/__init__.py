"""Sandboxes of Prime Intellect's service, through its HTTP interface."""
