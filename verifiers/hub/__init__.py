"""The client's side of the hub: rules, wire records, and the commands' work."""
