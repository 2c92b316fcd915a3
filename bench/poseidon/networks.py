"""The networks of Poseidon's table 3, and the images that one node computes in a second (section 5.1)."""

from functools import partial

from bench.common.layers import Network, googlenet, inception_v3, resnet, vgg19, vgg19_22k

NETWORKS = {
    "GoogLeNet": Network(googlenet, 5, 128, 257),
    "Inception-V3": Network(inception_v3, 27, 32, 43.2),
    "VGG19": Network(vgg19, 143, 32, 35.5),
    "VGG19-22K": Network(vgg19_22k, 229, 32, 34.6),
    # The paper gives no images a second for this network; it has Inception-V3's rate of operations here.
    "ResNet-152": Network(partial(resnet, blocks=(3, 8, 36, 3)), 60.2, 32, 21.9),
}
