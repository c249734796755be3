"""Whatever comes in by a door becomes a value, or is refused in a sentence: shown by inputs that coverage guides.

doors.py     for each door what is done with an input, and what may come of it
seeds.py     where to begin: one sound input of each kind, or some
guided.py    one door in a process of its own, under atheris
run.py       all doors, for so many minutes; ``make fuzz``
"""
