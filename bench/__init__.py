"""Side-by-side measurements: ``python -m bench NAME [--quick] [--check] [--out FILE]``."""
