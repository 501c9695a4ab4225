"""What may be published: the rules for names, wheels and source archives, shared by server and client."""
