"""Commands that work on a sampler of the user's own; each has `add_arguments(parser)` and `run(arguments)`."""
