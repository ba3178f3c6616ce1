"""Programs with one fault each, of kinds that no other test of a diagnosis has."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..programs import planted
from ..trainers import Parts, mlp, trains

WORDS = 11


def classes() -> tuple[Tensor, Tensor]:
    return torch.randn(32, 8), torch.randint(3, (32,))


def pictures() -> tuple[Tensor, Tensor]:
    return torch.rand(8, 3, 8, 8), torch.randint(3, (8,))


class Classifier(Parts):
    def __init__(self, **parts: object) -> None:
        super().__init__(body=mlp(8, 16, 16), head=nn.Linear(16, 3), **parts)


class Cnn(Parts):
    def __init__(self, **parts: object) -> None:
        super().__init__(stem=nn.Conv2d(3, 4, 3, padding=1), block=nn.Conv2d(4, 4, 3), head=nn.Linear(4, 3), **parts)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(self.head(self.features(x)), y)


@planted("cut")
@trains(Classifier, classes)
def probabilities_are_clamped_before_the_log(net: Parts, x: Tensor, y: Tensor) -> Tensor:
    p = (net.head(net.body(x)) * 30).softmax(-1)
    safe = p.clamp(min=1e-2)  # fault: clamp before log
    return -safe.log().gather(1, y[:, None]).mean()


@planted("vanish")
@trains(lambda: Parts(first=nn.Linear(8, 1), norm=nn.LayerNorm(1), head=nn.Linear(1, 3)), classes)
def a_layer_norm_over_one_feature(net: Parts, x: Tensor, y: Tensor) -> Tensor:
    hidden = net.norm(net.first(x))  # fault: normalisation of one number
    return functional.cross_entropy(net.head(hidden), y)


@planted("starved", "gain")
@trains(lambda: Classifier(gain=nn.Parameter(torch.ones(16))), classes)
def a_parameter_is_copied_with_torch_tensor(net: Parts, x: Tensor, y: Tensor) -> Tensor:
    gain = torch.tensor(net.gain)  # fault: torch.tensor(x)
    return functional.cross_entropy(net.head(net.body(x) * gain), y)


@planted("starved", "down", "up")
@trains(lambda: Classifier(down=nn.Parameter(torch.zeros(8, 2)), up=nn.Parameter(torch.zeros(2, 16))), classes)
def an_adapter_starts_with_two_zeros(net: Parts, x: Tensor, y: Tensor) -> Tensor:
    hidden = net.body(x) + x @ net.down @ net.up  # fault: both factors of an adapter start at 0
    return functional.cross_entropy(net.head(hidden), y)


@planted("starved", "centres", "head.weight")
@trains(lambda: Parts(centres=nn.Parameter(torch.randn(16, 8)), head=nn.Linear(16, 3)), classes)
def a_kernel_is_far_too_narrow(net: Parts, x: Tensor, y: Tensor) -> Tensor:
    distances = (x[:, None] - net.centres).square().sum(-1)
    near = torch.exp(-distances / 1e-6)  # fault: exp that underflows
    return functional.cross_entropy(net.head(near), y)


def different_words() -> tuple[Tensor]:
    """No word twice: equal keys would share the weight."""
    return (torch.stack([torch.randperm(WORDS)[:6] for _ in range(4)]),)


@planted("starved", "query.weight", "query.bias", "key.weight", "key.bias")
@trains(lambda: Parts(table=nn.Embedding(WORDS, 16), query=nn.Linear(16, 16), key=nn.Linear(16, 16)), different_words)
def attention_is_scaled_by_ten_thousand(net: Parts, x: Tensor) -> Tensor:
    h = net.table(x)
    scores = net.query(h) @ net.key(h).mT * 1e5
    weights = scores.softmax(-1)  # fault: softmax saturated by its scale
    return (weights @ h - 1).square().mean()


@planted("starved", "table.weight")
@trains(lambda: Parts(table=nn.Embedding(WORDS, 16, padding_idx=0), head=nn.Linear(16, WORDS)), different_words)
def every_token_is_the_padding(net: Parts, x: Tensor) -> Tensor:
    h = net.table(x * 0)  # fault: every token is padding_idx
    return functional.cross_entropy(net.head(h + 1).flatten(0, 1), x.flatten())


@planted("starved", "weight")
@trains(lambda: Cnn(weight=nn.Parameter(torch.randn(4, 4, 3, 3))), pictures, method="features")
def binary_weights_without_a_surrogate(net: Parts, x: Tensor) -> Tensor:
    binary = net.weight.sign()  # fault: sign without a surrogate
    return net.block(functional.conv2d(net.stem(x), binary, padding=1)).mean((2, 3))


@planted("starved", "weight")
@trains(lambda: Cnn(weight=nn.Parameter(torch.randn(4, 4, 3, 3) * 0.1 + 0.5)), pictures, method="features")
def a_quantiser_with_a_scale_that_is_too_small(net: Parts, x: Tensor) -> Tensor:
    low = torch.fake_quantize_per_tensor_affine(net.weight, 1e-4, 0, -8, 7)  # fault: fake_quantize scale wrong
    return net.block(functional.conv2d(net.stem(x), low, padding=1)).mean((2, 3))


@planted("starved", "centre", "size")
@trains(
    lambda: Parts(centre=nn.Parameter(torch.tensor([1.0, 1.0])), size=nn.Parameter(torch.tensor([1.0, 1.0]))),
    lambda: (torch.tensor([4.0, 4.0, 5.0, 5.0]),),
)
def boxes_that_do_not_overlap(net: Parts, target: Tensor) -> Tensor:
    low, high = net.centre - net.size / 2, net.centre + net.size / 2
    overlap = torch.minimum(high, target[2:]) - torch.maximum(low, target[:2])
    inter = overlap.clamp(min=0).prod()  # fault: overlap of boxes that do not meet
    return 1 - inter / (net.size.prod() + (target[2:] - target[:2]).prod() - inter)


@planted("starved", "locate.weight", "locate.bias")
@trains(lambda: Cnn(locate=nn.Linear(3, 6)), pictures, method="features")
def a_spatial_transformer_samples_the_nearest_pixel(net: Parts, x: Tensor) -> Tensor:
    theta = net.locate(x.mean((2, 3))).view(-1, 2, 3) + torch.eye(2, 3)
    grid = functional.affine_grid(theta, list(x.shape), align_corners=False)
    moved = functional.grid_sample(x, grid, mode="nearest", align_corners=False)  # fault: nearest sampling
    return net.block(net.stem(moved)).mean((2, 3))


@planted("guard")
@trains(lambda: Parts(pixels=nn.Parameter(torch.rand(3, 8, 8))), lambda: (torch.rand(3, 8, 8),), count=1)
def a_similarity_that_can_be_negative(net: Parts, target: Tensor) -> Tensor:
    covariance = ((net.pixels - net.pixels.mean()) * (target - target.mean())).mean((1, 2))
    positive = torch.relu(covariance - covariance.detach().sort().values[1])  # fault: guard of a root at 0
    return -(positive**0.3).mean()
