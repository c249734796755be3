"""Pages that people read in a browser: self-contained, escaped, fit for a phone, a keyboard and a printer."""
