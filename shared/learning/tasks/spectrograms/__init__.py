"""Segments of sounds as pictures of time and frequency, as of hearts."""
