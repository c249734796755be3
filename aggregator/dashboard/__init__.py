"""A page that shows where the newest run stands, live and read-only, in a browser on this machine or elsewhere."""
