"""`python -m hub_server`: what `hub serve` and `hub admin` run."""

from hub_server.commands import main

main()
