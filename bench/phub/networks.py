"""The networks of PHub's table 3."""

from collections.abc import Callable
from functools import partial

from bench.common.layers import FLOAT, Layer, Network, alexnet, googlenet, inception_v3, resnet, resnet18, vgg11, vgg19

DEEP = (3, 30, 48, 8)  # blocks of ResNet 269


def _row(make: Callable[[float], list[Layer]], mebibytes: int, milliseconds: float, batch: int) -> Network:
    return Network(make, mebibytes * 2**20 / FLOAT / 1e6, batch, batch / milliseconds * 1e3)


NETWORKS = {
    "AlexNet": _row(alexnet, 194, 16, 32),
    "VGG 11": _row(vgg11, 505, 121, 32),
    "VGG 19": _row(vgg19, 548, 268, 32),
    # With one auxiliary classifier the published network has the table's bytes; without any it has 27 MB.
    "GoogleNet": _row(partial(googlenet, auxiliary=True), 38, 100, 32),
    "Inception V3": _row(partial(inception_v3, auxiliary=False), 91, 225, 32),
    "ResNet 18": _row(resnet18, 45, 54, 32),
    "ResNet 50": _row(partial(resnet, blocks=(3, 4, 6, 3)), 97, 161, 32),
    "ResNet 269": _row(partial(resnet, blocks=DEEP), 390, 350, 16),
    "ResNext 269": _row(partial(resnet, blocks=DEEP, groups=32), 390, 386, 8),
}
