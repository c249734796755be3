"""Vessel segmentation of en-face OCTA images."""
