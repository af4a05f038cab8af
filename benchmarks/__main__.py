"""`python benchmarks` runs all benchmarks of this folder; `python benchmarks --help` says more."""

import sys

from _runner import main

if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ValueError as error:
        sys.exit(f"python benchmarks: {error}")
