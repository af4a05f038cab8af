"""Attacks on trimtab, and the record of how it stood them."""
