"""What an operator watches: health, metrics, the log."""
