"""Pages for people: HTML that is made on the server and needs no script, each with a JSON twin."""
