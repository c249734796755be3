"""What a researcher types, a file for each command: its name is that of the file, its help the file's docstring."""
