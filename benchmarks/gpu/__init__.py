"""Measurements that mean something on a GPU only; each runs on a CPU in a tiny shape, so that it stays working."""
