"""`python -m tandemrank` is the command `tandemrank`."""

from tandemrank.cli.main import main

if __name__ == "__main__":
    main()
