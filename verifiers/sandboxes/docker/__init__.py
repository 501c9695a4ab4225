"""Sandboxes that are containers of a Docker or Podman engine, through its HTTP interface."""
