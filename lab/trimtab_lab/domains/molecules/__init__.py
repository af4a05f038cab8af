"""Conformers of molecules from a learned flow, with bond lengths and a few far distances given."""
