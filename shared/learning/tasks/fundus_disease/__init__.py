"""Diseases in colour fundus photographs, by any set of labels."""
