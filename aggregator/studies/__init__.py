"""Studies: a matrix of ways, folds and seeds, played on one machine by the daemons' own code, and its tables."""
