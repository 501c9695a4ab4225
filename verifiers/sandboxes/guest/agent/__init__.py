"""The program that is the first process of a sandbox; `guest_program` joins its modules to one file."""
