"""Engines that sample for training, and what serves them to other processes."""
