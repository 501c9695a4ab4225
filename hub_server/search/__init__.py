"""Finding projects."""
