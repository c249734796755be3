"""A class for each pixel of an image, of any kind and with any labels."""
