"""Windows of multichannel time series, as of sensors that people wear."""
