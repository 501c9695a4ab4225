"""The registry: stores environments as immutable releases and serves them as a package index."""
