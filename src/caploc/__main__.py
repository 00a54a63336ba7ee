"""`python -m caploc`."""

from caploc.cli import main

main()
