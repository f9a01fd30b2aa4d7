"""What every room may use. Imports nothing else of this package, and the standard library alone at first."""
