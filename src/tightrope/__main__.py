"""``python -m tightrope``: the command where its script is not on the path."""

from tightrope.cli.main import main

if __name__ == "__main__":
    main()
