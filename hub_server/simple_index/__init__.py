"""What installers read: the Simple API and the files."""
