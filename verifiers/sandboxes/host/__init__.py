"""The host's end of a sandbox that our agent runs in: what every provider with one shares."""
