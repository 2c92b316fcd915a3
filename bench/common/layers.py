"""The networks that papers train, as lists of layers, at any width. Needs neither torch nor hpcomm.

A layer is one matrix. It has a row for each output channel, and a column for each weight of the channel, its bias, or
the scale and shift of its batch normalization. A bias is the weight of an input that is always 1, so the update of a
linear layer with its bias is also a sum of outer products of vectors. Branches are listed one after the other.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bench.common.launch import memory

FLOAT = 4
RANK_BYTES = 200 << 20  # of a rank without a network
QUARTER = 0.25
BIAS, NORM = 1, 2  # columns beside the weights
FORWARD = 1 / 3  # of a step's operations; the backward pass multiplies by the weights and by the inputs


@dataclass(frozen=True)
class Layer:
    """One layer.

    positions: of the output; each needs one product with the matrix. linear: K pairs of vectors make an update.
    """

    name: str
    rows: int
    columns: int
    positions: int = 1
    linear: bool = False

    @property
    def count(self) -> int:
        return self.rows * self.columns

    @property
    def work(self) -> int:
        return self.count * self.positions


@dataclass
class Builder:
    """Adds layers, with channels multiplied by width; images always have three channels."""

    width: float
    extra: int
    layers: list[Layer] = field(default_factory=list)

    def scaled(self, channels: int) -> int:
        return channels if channels == 3 else max(1, round(channels * self.width))

    def conv(self, inputs: int, outputs: int, kernel: int, side: int, groups: int = 1) -> int:
        """Adds a convolution. kernel: elements of the kernel. side: of the output. groups: of channels, computed
        separately."""
        name = f"conv{len(self.layers)}"
        columns = kernel * max(1, self.scaled(inputs) // groups) + self.extra
        self.layers.append(Layer(name, self.scaled(outputs), columns, side * side))
        return outputs

    def chain(self, inputs: int, side: int, *steps: tuple[int, int]) -> int:
        """Adds successive convolutions, given as (output channels, kernel elements)."""
        for outputs, kernel in steps:
            inputs = self.conv(inputs, outputs, kernel, side)
        return inputs

    def linear(self, inputs: int, outputs: int, values: int = 1) -> int:
        """values: of each input channel."""
        columns = values * self.scaled(inputs) + BIAS
        self.layers.append(Layer(f"fc{len(self.layers)}", self.scaled(outputs), columns, linear=True))
        return outputs


def alexnet(width: float) -> list[Layer]:
    """Returns the layers of MXNet's AlexNet: one column, no grouped convolutions."""
    b = Builder(width, BIAS)
    inputs = b.conv(b.conv(3, 96, 121, 54), 256, 25, 26)
    inputs = b.chain(inputs, 12, (384, 9), (384, 9), (256, 9))
    b.linear(b.linear(b.linear(inputs, 4096, 25), 4096), 1000)
    return b.layers


def vgg(width: float, convolutions: Sequence[int], classes: int = 1000) -> list[Layer]:
    """convolutions: between two poolings."""
    b, inputs, side = Builder(width, BIAS), 3, 224
    for channels, each in zip((64, 128, 256, 512, 512), convolutions, strict=True):
        inputs = b.chain(inputs, side, *[(channels, 9)] * each)
        side //= 2
    b.linear(b.linear(b.linear(inputs, 4096, side * side), 4096), classes)
    return b.layers


def vgg11(width: float) -> list[Layer]:
    return vgg(width, (1, 1, 2, 2, 2))


def vgg19(width: float, classes: int = 1000) -> list[Layer]:
    return vgg(width, (2, 2, 4, 4, 4), classes)


def vgg19_22k(width: float) -> list[Layer]:
    return vgg19(width, 21841)


def googlenet(width: float, auxiliary: bool = False) -> list[Layer]:
    """Returns the layers of GoogLeNet. auxiliary: include the first of its two auxiliary classifiers."""
    b = Builder(width, BIAS)
    inputs = b.chain(b.conv(3, 64, 49, 112), 56, (64, 1), (192, 9))
    for side, blocks in (
        (28, ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64))),
        (
            14,
            (
                (192, 96, 208, 16, 48, 64),
                (160, 112, 224, 24, 64, 64),
                (128, 128, 256, 24, 64, 64),
                (112, 144, 288, 32, 64, 64),
                (256, 160, 320, 32, 128, 128),
            ),
        ),
        (7, ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128))),
    ):
        for one, before3, three, before5, five, pool in blocks:
            branches = (((one, 1),), ((before3, 1), (three, 9)), ((before5, 1), (five, 25)), ((pool, 1),))
            inputs = sum(b.chain(inputs, side, *branch) for branch in branches)
            if auxiliary and (side, one) == (14, 192):
                b.linear(b.linear(b.conv(inputs, 128, 1, 4), 1024, 16), 1000)
    b.linear(inputs, 1000)
    return b.layers


def inception_v3(width: float, auxiliary: bool = True) -> list[Layer]:
    """auxiliary: with its auxiliary classifier."""
    b = Builder(width, NORM)
    inputs = b.conv(b.conv(b.conv(3, 32, 9, 149), 32, 9, 147), 64, 9, 147)
    inputs = b.conv(b.conv(inputs, 80, 1, 73), 192, 9, 71)

    def block(side: int, *branches: Sequence[tuple[int, int]]) -> int:
        return sum(b.chain(inputs, side, *branch) for branch in branches)

    for pool in (32, 64, 64):
        inputs = block(35, [(64, 1)], [(48, 1), (64, 25)], [(64, 1), (96, 9), (96, 9)], [(pool, 1)])
    inputs += b.conv(inputs, 384, 9, 17) + b.conv(b.chain(inputs, 35, (64, 1), (96, 9)), 96, 9, 17)
    for c in (128, 160, 160, 192):
        inputs = block(17, [(192, 1)], [(c, 1), (c, 7), (192, 7)], [(c, 1), *[(c, 7)] * 3, (192, 7)], [(192, 1)])
    if auxiliary:
        b.linear(b.conv(b.conv(inputs, 128, 1, 5), 768, 25, 1), 1000)
    inputs += b.conv(b.conv(inputs, 192, 1, 17), 320, 9, 8)
    inputs += b.conv(b.chain(768, 17, (192, 1), (192, 7), (192, 7)), 192, 9, 8)
    for _ in range(2):
        first = b.conv(inputs, 320, 1, 8) + b.conv(inputs, 192, 1, 8)
        split = [b.conv(inputs, 384, 1, 8), b.chain(inputs, 8, (448, 1), (384, 9))]
        inputs = first + sum(b.conv(one, 384, 3, 8) for one in split for _ in range(2))
    b.linear(inputs, 1000)
    return b.layers


def resnet(width: float, blocks: Sequence[int], groups: int = 1) -> list[Layer]:
    """Returns the layers of a ResNet. blocks: the number of blocks, of three convolutions each, for every image size.
    groups: groups of the second convolution of a block, which then has twice as many channels (ResNeXt)."""
    b = Builder(width, NORM)
    inputs = b.conv(3, 64, 49, 112)
    for planes, each, side in zip((64, 128, 256, 512), blocks, (56, 28, 14, 7), strict=True):
        inner = planes if groups == 1 else 2 * planes
        for i in range(each):
            if i == 0:
                b.conv(inputs, 4 * planes, 1, side)
            inputs = b.conv(b.conv(b.conv(inputs, inner, 1, side), inner, 9, side, groups), 4 * planes, 1, side)
    b.linear(inputs, 1000)
    return b.layers


def resnet18(width: float) -> list[Layer]:
    b = Builder(width, NORM)
    inputs = b.conv(3, 64, 49, 112)
    for planes, side in zip((64, 128, 256, 512), (56, 28, 14, 7), strict=True):
        if planes > 64:
            b.conv(inputs, planes, 1, side)
        inputs = b.chain(inputs, side, *[(planes, 9)] * 4)
    b.linear(inputs, 1000)
    return b.layers


@dataclass(frozen=True)
class Network:
    """A row of a paper's table of networks.

    Attributes:
        millions: parameters, as printed in the table.
        batch: samples of one node in a step.
        images: that one node computes in a second.
    """

    make: Callable[[float], list[Layer]]
    millions: float
    batch: int
    images: float

    def pairs(self, width: float) -> int:
        """Returns K, which shrinks with the width, so that its ratio to the sides of the matrices stays the paper's."""
        return max(1, round(self.batch * width))

    def seconds(self, width: float, gigabits: float, paper: float) -> float:
        """Returns the seconds of computing in a step that keep the paper's ratio of computing to sending all
        parameters. gigabits: the link here, in Gb/s. paper: the paper's link."""
        return self.batch / self.images * (count(self.make(width)) / gigabits) / (count(self.make(1.0)) / paper)


def count(layers: Sequence[Layer]) -> int:
    return sum(layer.count for layer in layers)


def times(layers: Sequence[Layer], seconds: float) -> Iterator[tuple[float, float]]:
    """Yields each layer's seconds of forward and of backward pass, by its share of the operations."""
    whole = math.fsum(layer.work for layer in layers)
    for layer in layers:
        own = seconds * layer.work / whole
        yield FORWARD * own, (1 - FORWARD) * own


def needed(layers: Sequence[Layer], workers: int) -> int:
    """Returns the bytes of memory that all ranks need: each worker's parameters and gradients, all gradients on their
    servers, and the parameters of one server that does nothing else."""
    return FLOAT * count(layers) * (3 * workers + 1) + RANK_BYTES * (workers + 1)


def too_large(networks: Mapping[str, Network], chosen: Iterable[str], width: float, workers: int) -> str:
    """Returns why the largest chosen network cannot be trained here, or ""."""
    needs = max((needed(networks[key].make(width), workers) / 2**30, key) for key in chosen)
    if needs[0] <= (free := memory()):
        return ""
    return (
        f"--width is {width:g}: {needs[1]} with {workers} workers needs {needs[0]:.1f} GiB, {free:.1f} are free: give "
        "a smaller --width, fewer --hosts, or --networks without it"
    )
