"""The networks. Their names and limits stand here, without PyTorch, for settings speak of them."""

ENCODERS = ("resnet18", "resnet34", "resnet50", "vgg19", "efficientnet_b0", "small")
"""Of ``encoders.py``: torchvision's, and a tiny one."""
WITHOUT_BATCH_NORM = ("vgg19", "plain")
"""Encoders that a frozen base may be of: nothing in them changes with the images; ``plain`` is for quick trials."""
FEWEST_MOMENTS = 8
"""What ``signal_encoder.py`` needs of a time series: each of three poolings halves it."""
