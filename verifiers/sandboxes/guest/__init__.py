"""Programs that run inside a sandbox: single files of the standard library alone."""
