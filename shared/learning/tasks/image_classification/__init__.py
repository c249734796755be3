"""One class for each image, of any kind and with any labels."""
