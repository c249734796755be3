"""What daemons import in their work, the moment they need it; imported here by the process that they are forked from."""

import PIL.PngImagePlugin
import sklearn.metrics
import torch._dynamo

from shared.learning.data.imgaug_import import import_imgaug

import_imgaug()
