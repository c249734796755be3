"""Imports imgaug by its only door, for a process that others are forked from."""

from shared.learning.data.imgaug_import import import_imgaug

import_imgaug()
