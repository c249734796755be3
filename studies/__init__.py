"""Studies: a matrix of arms, folds and seeds, played on one machine by the daemons' own code, and its tables."""
