"""Networks that dropfed does not know, trained by a program of the hospital."""
