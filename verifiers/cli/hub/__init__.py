"""`hub`: publish, find, pin and install environments. One file a command; `main.py` lists them."""
