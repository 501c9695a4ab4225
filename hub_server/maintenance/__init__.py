"""What an operator does now and then: first token, check, export, import, sweep."""
