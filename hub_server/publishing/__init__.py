"""How a release comes in: the installers' upload route and sessions."""
