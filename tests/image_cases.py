"""Small images and an encoder whose features are known without it."""

import numpy as np
from PIL import Image
from torch import nn

from softq.neural.images import Encoder, find_images


class Means(nn.Module):
    """Mean colours, and how many images it was asked for."""

    def __init__(self):
        super().__init__()
        self.batches = []

    def forward(self, images):
        self.batches.append(len(images))
        return images.mean((2, 3))


def means(name="means", weights="w"):
    return Encoder(name, Means(), 3, weights, size=16, crop=1.0)


def paint(path, colour, size=(20, 30), **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path, **options)
    return path


def folder(tmp_path, count=10):
    """Images in plain colours: the features of `means` are known."""
    colours = {f"{number:02}.png": (number, 2 * number, 100 + number) for number in range(count)}
    for name, colour in colours.items():
        paint(tmp_path / "in" / name, colour)
    return find_images([tmp_path / "in"]), np.array(list(colours.values()), dtype=np.float32)


def corrupt(path):
    path.write_bytes(b"no image")
