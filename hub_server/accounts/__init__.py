"""Who may do what: owners, their members, tokens."""
