"""The program that is the first process of a sandbox; `guest/program.py` joins its modules to one file."""
