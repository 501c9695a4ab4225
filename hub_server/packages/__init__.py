"""What is stored: projects, releases, files."""
