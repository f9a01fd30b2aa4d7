"""What is learned, and from which data. Knows no model."""
