"""The loop: a run, the corrector that says which run it is, samplers and problems."""
