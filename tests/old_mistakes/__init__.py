"""What is known to have gone wrong in a federation that exchanged files through a folder: one test for each flaw.

The tests' names are the flaws; the first half of each docstring is the old behaviour, the second what holds here.
"""
