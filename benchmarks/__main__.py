"""`python benchmarks` runs all benchmarks of this folder; `python benchmarks --help` says more."""

import argparse
import sys

from _runner import add_arguments, bench_command

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python benchmarks",
        description="Run the benchmarks: peers and ours interleaved on the same inputs, as ratios.",
    )
    add_arguments(parser)
    try:
        sys.exit(bench_command(parser.parse_args()))
    except ValueError as error:
        sys.exit(f"python benchmarks: {error}")
