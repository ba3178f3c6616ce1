"""For the page of each op, an example inside a network. tests/pages runs them as doctests on the pages."""

from __future__ import annotations

_SETTING = """>>> import torch
>>> import pseudograd as pg
>>> _ = torch.manual_seed(0)
"""
_EXAMPLES = {
    "abs": (
        "A gain that is kept positive by `abs` and starts at 0. With torch's slope of 0 there, it never moves.",
        """
>>> gain = torch.nn.Parameter(torch.zeros(3))
>>> layer = torch.nn.Linear(4, 3)
>>> x, target = torch.rand(8, 4), torch.rand(8, 3)
>>> def loss(absolute):
...     return (absolute(gain) * layer(x) - target).square().mean()
>>> torch.autograd.grad(loss(torch.abs), gain)[0].count_nonzero().item()
0
>>> torch.autograd.grad(loss(lambda gain: pg.abs(gain, edge=1)), gain)[0].count_nonzero().item()
3
""",
    ),
    "clamp": (
        "A head whose outputs are bounded, and start above the range: one rule lets them back in.",
        """
>>> def trained(rule):
...     head = torch.nn.Linear(4, 1)
...     torch.nn.init.constant_(head.bias, 3.0)
...     x = torch.rand(64, 4)
...     target = x.mean(1, keepdim=True)
...     optimizer = torch.optim.SGD(head.parameters(), lr=0.2)
...     for _ in range(150):
...         loss = (pg.clamp(head(x), 0, 1, rule=rule) - target).square().mean()
...         optimizer.zero_grad()
...         loss.backward()
...         optimizer.step()
...     return round(loss.item(), 1)
>>> trained("zero"), trained("inward")
(0.3, 0.0)
""",
    ),
    "gelu": (
        "The MLP of a transformer. Under the switch its activation keeps a sixteenth of the bytes; the other tensors are the same.",
        """
>>> mlp = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))
>>> x = torch.rand(128, 64)
>>> def kept():
...     found = []
...     with torch.autograd.graph.saved_tensors_hooks(lambda t: found.append(t.nbytes) or t, lambda t: t):
...         mlp(x).sum()
...     return sorted(found)
>>> with pg.override(gelu="fewbit"):
...     few = kept()
>>> sum(kept()) - sum(few), few[0]
(122880, 8192)
""",
    ),
    "silu": (
        "A gated MLP, whose gate is a silu of 3 bits.",
        """
>>> up, gate, down = torch.nn.Linear(16, 64), torch.nn.Linear(16, 64), torch.nn.Linear(64, 16)
>>> x = torch.randn(100, 16)
>>> def slope(rule):
...     return torch.autograd.grad(down(pg.silu(gate(x), rule=rule) * up(x)).square().mean(), gate.weight)[0]
>>> round(torch.cosine_similarity(slope("exact").flatten(), slope(pg.rules.fewbit(bits=3)).flatten(), dim=0).item(), 2)
1.0
""",
    ),
    "leaky_relu": (
        "A discriminator's activation keeps one bit of each element instead of four bytes, for the same gradient.",
        """
>>> layer = torch.nn.Linear(32, 64)
>>> x = torch.randn(128, 32)
>>> def slope(f):
...     return torch.autograd.grad(f(layer(x), 0.2).square().mean(), layer.weight)[0]
>>> torch.equal(slope(pg.ops.leaky_relu), slope(torch.nn.functional.leaky_relu))
True
""",
    ),
    "hardsigmoid": (
        "A gate of a small network for phones, with one bit kept of each element.",
        """
>>> gate = torch.nn.Linear(32, 64)
>>> x = torch.randn(128, 32)
>>> def slope(f):
...     return torch.autograd.grad(f(gate(x)).square().mean(), gate.weight)[0]
>>> torch.equal(slope(pg.ops.hardsigmoid), slope(torch.nn.functional.hardsigmoid))
True
""",
    ),
    "lower_bound": (
        "A network that predicts a width keeps it above a floor. The width starts below, and has to grow to 2.",
        """
>>> def trained(rule):
...     width = torch.nn.Linear(1, 1)
...     torch.nn.init.constant_(width.bias, -2.0)
...     x = torch.rand(64, 1)
...     optimizer = torch.optim.SGD(width.parameters(), lr=0.2)
...     for _ in range(100):
...         loss = (pg.lower_bound(width(x), 0.1, rule=rule) - 2).square().mean()
...         optimizer.zero_grad()
...         loss.backward()
...         optimizer.step()
...     return round(loss.item(), 2)
>>> trained("zero"), trained("inward")
(3.61, 0.0)
""",
    ),
    "upper_bound": (
        "The logit scale of a contrastive model is held at 100 or below. It has overshot, and the loss wants it smaller.",
        """
>>> log_scale = torch.nn.Parameter(torch.tensor(5.0))  # exp(5) is 148
>>> image, text = (torch.nn.functional.normalize(torch.rand(6, 8), dim=1) for _ in range(2))
>>> def arrives(rule):
...     scale = pg.upper_bound(log_scale.exp(), 100.0, rule=rule)
...     loss = torch.nn.functional.cross_entropy(scale * image @ text.T, torch.arange(6))
...     return torch.autograd.grad(loss, log_scale)[0].item() > 0
>>> arrives("zero"), arrives("inward")
(False, True)
""",
    ),
    "relu": (
        "Units that are off for every input get no gradient and stay off. `inward` lets through what would switch them on.",
        """
>>> hidden, last = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
>>> _ = torch.nn.init.constant_(hidden.bias, -5.0)  # all eight are off
>>> _ = torch.nn.init.ones_(last.weight)
>>> x = torch.rand(16, 4)
>>> def alive(rule):
...     loss = (last(pg.relu(hidden(x), rule=rule)) - 1).square().mean()
...     return torch.autograd.grad(loss, hidden.bias)[0].count_nonzero().item()
>>> alive("zero"), alive("inward")
(0, 8)
""",
    ),
    "relu6": (
        "Units that are saturated at 6 for every input, as after too large a step, and the same with another rule.",
        """
>>> hidden, last = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
>>> _ = torch.nn.init.constant_(hidden.bias, 9.0)
>>> _ = torch.nn.init.ones_(last.weight)
>>> x = torch.rand(16, 4)
>>> def alive(rule):
...     loss = last(pg.relu6(hidden(x), rule=rule)).square().mean()
...     return torch.autograd.grad(loss, hidden.bias)[0].count_nonzero().item()
>>> alive("zero"), alive("leaky")
(0, 8)
""",
    ),
    "hardtanh": (
        "The action of a policy is bounded to [-1, 1]. It starts far outside, and has to come back to 0.5.",
        """
>>> def trained(rule):
...     policy = torch.nn.Sequential(torch.nn.Linear(3, 1), pg.nn.Hardtanh(rule=rule))
...     torch.nn.init.constant_(policy[0].bias, 4.0)
...     state = torch.rand(32, 3)
...     optimizer = torch.optim.SGD(policy.parameters(), lr=0.2)
...     for _ in range(100):
...         loss = (policy(state) - 0.5).square().mean()
...         optimizer.zero_grad()
...         loss.backward()
...         optimizer.step()
...     return round(loss.item(), 2)
>>> trained("zero"), trained("inward")
(0.25, 0.0)
""",
    ),
    "replace_grad": (
        "Attention that looks at one place only: the values of argmax, the gradient of softmax.",
        """
>>> query, key, value = torch.nn.Linear(4, 4), torch.rand(5, 4), torch.rand(5, 4)
>>> def attend(x, weights_of):
...     return weights_of(query(x) @ key.T) @ value
>>> def hard(scores):
...     return torch.nn.functional.one_hot(scores.argmax(-1), 5).float()
>>> def hard_with_gradient(scores):
...     return pg.replace_grad(hard(scores), scores.softmax(-1))
>>> x = torch.rand(3, 4)
>>> torch.equal(attend(x, hard), attend(x, hard_with_gradient))
True
>>> attend(x, hard).requires_grad, attend(x, hard_with_gradient).requires_grad
(False, True)
""",
    ),
    "scale_grad": (
        "A pretrained body that learns at a tenth of the rate of the head, with one optimizer and one parameter group.",
        """
>>> body, head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
>>> x = torch.rand(16, 4)
>>> def gradients(scale):
...     loss = head(pg.scale_grad(body(x), scale)).square().mean()
...     return torch.autograd.grad(loss, [body.weight, head.weight])
>>> (body_full, head_full), (body_tenth, head_same) = gradients(1.0), gradients(0.1)
>>> torch.allclose(body_tenth, 0.1 * body_full), torch.equal(head_same, head_full)
(True, True)
""",
    ),
    "reverse_grad": (
        "Domain-adversarial training: the critic learns to tell domains apart, the features learn that it cannot.",
        """
>>> features, critic = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)
>>> x, domain = torch.rand(16, 4), torch.randint(2, (16,))
>>> def gradients(between):
...     loss = torch.nn.functional.cross_entropy(critic(between(features(x))), domain)
...     return torch.autograd.grad(loss, [features.weight, critic.weight])
>>> (plain, critic_plain), (reversed_, critic_same) = gradients(lambda h: h), gradients(pg.reverse_grad)
>>> torch.equal(reversed_, -plain), torch.equal(critic_same, critic_plain)
(True, True)
""",
    ),
    "clip_grad": (
        "One outlier in the batch sends a gradient of thousands into the body of the network; here each element gets at most 0.5.",
        """
>>> body, head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
>>> x = torch.rand(16, 4)
>>> target = torch.zeros(16, 1)
>>> target[0] = 1e4
>>> def arrives(limit):
...     h = body(x).detach().requires_grad_()
...     loss = (head(h if limit is None else pg.clip_grad(h, limit)) - target).square().mean()
...     return torch.autograd.grad(loss, h)[0].abs().max().item()
>>> arrives(None) > 100, arrives(0.5)
(True, 0.5)
""",
    ),
    "fake_quantize": (
        "A layer that trains with weights of four bits. The forward uses the grid; every weight gets a gradient.",
        """
>>> layer = torch.nn.Linear(16, 8)
>>> scale = layer.weight.detach().abs().max() / 7
>>> x = torch.rand(32, 16)
>>> weight = pg.fake_quantize(layer.weight, scale, 0, -8, 7)
>>> len((weight / scale).round().unique()) <= 16
True
>>> loss = torch.nn.functional.linear(x, weight, layer.bias).square().mean()
>>> loss.backward()
>>> layer.weight.grad.count_nonzero().item() == layer.weight.numel()
True
""",
    ),
    "round": (
        "An autoencoder whose code is whole numbers. With `torch.round` its encoder gets no gradient at all.",
        """
>>> encoder, decoder = torch.nn.Linear(4, 3), torch.nn.Linear(3, 4)
>>> x = torch.rand(16, 4)
>>> def encoder_grad(rounded):
...     loss = (decoder(rounded(5 * encoder(x))) - x).square().mean()
...     return torch.autograd.grad(loss, encoder.weight)[0].count_nonzero().item()
>>> encoder_grad(torch.round), encoder_grad(pg.round)
(0, 12)
""",
    ),
    "floor": (
        "Hidden values stored with two bits after the point, cut off downwards, as an integer shift does.",
        """
>>> first, last = torch.nn.Linear(4, 6), torch.nn.Linear(6, 1)
>>> x = torch.rand(16, 4)
>>> def first_grad(floor):
...     hidden = floor(4 * first(x)) / 4
...     return torch.autograd.grad(last(hidden).square().mean(), first.weight)[0].count_nonzero().item()
>>> first_grad(torch.floor), first_grad(pg.floor)
(0, 24)
""",
    ),
    "ceil": (
        "A learned number of tiles: a part of a tile costs a whole one. The cost is counted, and its gradient arrives.",
        """
>>> size = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Softplus())
>>> x = torch.rand(16, 3)
>>> def cost_grad(ceil):
...     tiles = ceil(size(x) / 0.5)
...     return torch.autograd.grad(tiles.mean(), size[0].weight)[0].count_nonzero().item()
>>> cost_grad(torch.ceil), cost_grad(pg.ceil)
(0, 3)
""",
    ),
    "trunc": (
        "Activations in fixed point, cut towards zero as processors do, in a network that trains with them.",
        """
>>> def trained(trunc):
...     first, last = torch.nn.Linear(2, 16), torch.nn.Linear(16, 1)
...     x = torch.rand(128, 2) * 2 - 1
...     target = x[:, :1] * x[:, 1:]
...     before = first.weight.detach().clone()
...     optimizer = torch.optim.Adam([*first.parameters(), *last.parameters()], lr=0.02)
...     for _ in range(50):
...         loss = (last(trunc(8 * first(x)) / 8) - target).square().mean()
...         optimizer.zero_grad()
...         loss.backward()
...         optimizer.step()
...     return not torch.equal(first.weight, before)
>>> trained(torch.trunc), trained(pg.trunc)
(False, True)
""",
    ),
    "sign": (
        "A binary network: activations are -1 or 1, and its first layer learns through the steps.",
        """
>>> first, last = torch.nn.Linear(4, 16), torch.nn.Linear(16, 1)
>>> x = torch.rand(64, 4) - 0.5
>>> hidden = pg.sign(first(x))
>>> sorted(hidden.unique().tolist())
[-1.0, 1.0]
>>> last(hidden).square().mean().backward()
>>> first.weight.grad.count_nonzero().item(), first.weight.numel()
(64, 64)
""",
    ),
    "heaviside": (
        "A spiking layer: a neuron fires where its potential passes 1, and the gradient of the count of spikes reaches the input weights.",
        """
>>> layer = torch.nn.Linear(8, 4)
>>> x = torch.rand(10, 8)  # ten steps of time
>>> potential, spikes = torch.zeros(4), []
>>> for current in layer(x):
...     potential = 0.9 * potential + current.abs()
...     spikes.append(pg.heaviside(potential - 1, rule="arctan"))
...     potential = potential * (1 - spikes[-1].detach())  # a neuron that fired starts again
>>> count = torch.stack(spikes).sum(0)
>>> bool((count == count.round()).all())
True
>>> (count - 2.5).square().sum().backward()
>>> layer.weight.grad.count_nonzero().item() == layer.weight.numel()
True
""",
    ),
    "jumprelu": (
        "A sparse autoencoder: the error of what it rebuilds, and a penalty on how many features are on, by a step with the same window. "
        "Where the window is too narrow, most thresholds have no x to learn from.",
        """
>>> encoder, decoder = torch.nn.Linear(8, 32), torch.nn.Linear(32, 8)
>>> threshold = torch.nn.Parameter(torch.full((32,), 0.1))
>>> x = torch.randn(64, 8)
>>> def learning(bandwidth):
...     hidden = encoder(x)
...     features = pg.jumprelu(hidden, threshold, bandwidth=bandwidth)
...     window = pg.rules.window(scale=bandwidth / 2, height=1 / bandwidth)
...     active = pg.heaviside(hidden - threshold, at_zero=0, rule=window).sum(-1).mean()
...     loss = (decoder(features) - x).square().mean() + 0.01 * active
...     return torch.autograd.grad(loss, threshold)[0].count_nonzero().item()
>>> learning(0.1) > 24, learning(0.001) < 8
(True, True)
""",
    ),
    "policy_loss": (
        "Four steps on one batch, as PPO takes them: the ratios leave 1, and the clip falls silent where they have gone far enough.",
        """
>>> policy = torch.nn.Linear(4, 3)
>>> optimizer = torch.optim.SGD(policy.parameters(), lr=2.0)
>>> states = torch.randn(64, 4)
>>> def log_prob(): return policy(states).log_softmax(-1).gather(-1, actions)[:, 0]
>>> actions = policy(states).softmax(-1).multinomial(1)
>>> old, advantage = log_prob().detach(), torch.randn(64)
>>> silenced = []
>>> for step in range(4):
...     log_ratio = log_prob() - old
...     silenced.append(pg.policy.clip_report(log_ratio, advantage).silenced_share)
...     optimizer.zero_grad()
...     pg.policy.loss(log_ratio, advantage).mean().backward()
...     optimizer.step()
>>> silenced[0], silenced[-1] > 0.05
(0.0, True)
""",
    ),
    "vector_quantize": (
        "Between the encoder and the decoder of a VQ-VAE. The encoder learns through the codes, the codebook by its own loss.",
        """
>>> encoder, decoder = torch.nn.Linear(6, 2), torch.nn.Linear(2, 6)
>>> codebook = torch.nn.Parameter(torch.randn(8, 2))
>>> x = torch.rand(32, 6)
>>> z = encoder(x)
>>> codes, indices = pg.codebook.vector_quantize(z, codebook)
>>> loss = (decoder(codes) - x).square().mean()
>>> loss = loss + pg.codebook.codebook_loss(z, codebook, indices) + 0.25 * pg.codebook.commitment_loss(z, codes)
>>> loss.backward()
>>> encoder.weight.grad.count_nonzero().item(), len(indices.unique()) == codebook.grad.any(1).sum().item()
(12, True)
""",
    ),
}


def section(name: str) -> list[str]:
    """The paragraphs of a page; none for an op that has no example yet."""
    if name not in _EXAMPLES:
        return []
    sentence, code = _EXAMPLES[name]
    return ["## Inside a network", sentence, f"```python\n{_SETTING}{code.strip()}\n\n```"]
