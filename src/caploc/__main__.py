"""`python -m caploc`."""

from caploc.cli import main

if __name__ == "__main__":
    main()
