"""What sites have, read and checked. The limits and names that settings speak of stand here."""

SMALLEST_SIDE = 32
"""In pixels: below this the deepest level of a five-level U-Net has nothing left to normalise over."""
MOST_LABELS = 100
"""Of images with one class each."""
TIME = "time"
"""The column of a time series that says when, in seconds."""
