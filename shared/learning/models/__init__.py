"""The networks. Their names and limits stand here, without PyTorch, for settings speak of them."""

ENCODERS = ("resnet18", "resnet34", "resnet50", "vgg19", "efficientnet_b0", "small")
"""Of ``encoders.py``: those that are taken apart into layers, torchvision's and a tiny one."""
WITHOUT_BATCH_NORM = ("vgg19", "plain")
"""Encoders that a frozen base may be of: nothing in them changes with the images; ``plain`` is for quick trials."""
FEWEST_MOMENTS = 8
"""What ``signal_encoder.py`` needs of a time series: each of three poolings halves it."""

Levels = tuple[tuple[float, float, float], tuple[float, float, float]]
"""Mean and deviation of each channel, on the range 0 to 1, which were taken off an image and divided by."""
AS_READ: Levels = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
"""Of images that lie between 0 and 1, and are left so."""
IMAGENET: Levels = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of the red, green and blue of ImageNet's photographs: what torchvision's networks were trained with."""
