"""`text_to_digit`: a miniature of VQGAN+CLIP. A picture is pulled towards a word, through a codebook and a clamp; the judge knows neither.

The generator is a vector-quantised autoencoder of digits, the scorer compares embeddings of pictures and words, and the judge is a
support vector machine of scikit-learn, trained on real digits alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pseudograd.comparison.statistics import BETTER
from pseudograd.ops.replace import replace_grad

from . import digits as data
from . import sentences
from .base import OURS, Context, Gallery, Outcome, Score, Settings, Task, Variant, Worlds

if TYPE_CHECKING:
    from sklearn.svm import SVC

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "scribble")
SENTENCES = ("{}", "the digit {}", "a handwritten {}", "a photo of a {}")
CODES, SIZE_OF_CODE, PLACES = 128, 16, 4  # a picture is 2 x 2 codes
BUILD_SEED, GENERATOR_STEPS, SCORER_STEPS, GENERATOR_RATE, SCORER_RATE = 0, 900, 900, 3e-3, 2e-3
SEEDS, STEPS, RATE, VIEWS, AWAY = 10, 300, 0.1, 4, 0.5
ROWS = 7  # of a picture: as high as the panels of a figure are
PLAIN, STRONG, WITHOUT = "with replace_grad", "contrast x3", "no replace_grad"
CONTRAST = {PLAIN: 1.0, STRONG: 3.0, WITHOUT: 1.0}
SCORE = Score("right", "{} of the pictures are what was asked for", tie=0.0)
_SETTING = (
    "{pictures} pictures, {seeds} random starts for each of ten words. {steps} Adam steps at rate {rate:g} move the "
    "codes of a vector-quantised autoencoder of digits; the picture is clamped between black and white before a "
    "scorer compares it with the word. The nearest code is looked up in each step, and replace_grad sends its "
    "gradient to the free vector, or nothing does. The judge, a support vector machine trained on real digits alone, "
    "gets {judge:.1%} of the others right; {chance:.0%} is chance. There is one autoencoder and one scorer, so that "
    "another pair may rank rules otherwise. This tells what replace_grad is worth, and of the clamp's rules only what"
    " the sentences below say. {test}"
)


class Built(NamedTuple):
    codes: Tensor  # (128, 16)
    decoder: nn.Module  # of (n, 64), the four codes of a picture one after the other
    scorer: nn.Module
    embedded_words: Tensor  # (11, 64), of length 1
    judge: SVC
    judge_right: float


class _Unit(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.normalize(x, dim=-1)


def _layers(*sizes: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for size, out in pairwise(sizes):
        layers += [nn.Linear(size, out), nn.ReLU()]
    return layers[:-1]


def nearest(z: Tensor, codes: Tensor) -> Tensor:
    """(n, 4): the index of the code nearest to each of z (n, 4, 16)."""
    return torch.cdist(z, codes, compute_mode="donot_use_mm_for_euclid_dist").argmin(-1)


def jitter(pictures: Tensor, generator: torch.Generator) -> Tensor:
    """Each picture (n, 64) moved by up to one pixel, with a little noise: a scorer that only knows still pictures is easily fooled."""
    n = len(pictures)
    framed = functional.pad(pictures.view(n, 8, 8), (1, 1, 1, 1))
    windows = framed.unfold(1, 8, 1).unfold(2, 8, 1)  # (n, 3, 3, 8, 8)
    down, across = torch.randint(3, (2, n), generator=generator)
    moved = windows[torch.arange(n), down, across].flatten(1)
    return moved + 0.1 * torch.randn(moved.shape, generator=generator)


@cache
@torch.enable_grad()
def built() -> Built:
    from sklearn.svm import SVC

    images = data.digits()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(BUILD_SEED)
        generator = torch.Generator().manual_seed(BUILD_SEED)
        codes, decoder = _generator(generator)
        scorer, embedded = _scorer(codes, decoder, generator)
    judge = SVC(gamma=1.0, C=10.0).fit(images.train.numpy(), images.train_labels.numpy())
    right = float(judge.score(images.test.numpy(), images.test_labels.numpy()))
    return Built(codes, decoder, scorer, embedded, judge, right)


def _generator(generator: torch.Generator) -> tuple[Tensor, nn.Module]:
    images = data.digits().train
    encoder, decoder = nn.Sequential(*_layers(64, 256, 64)), nn.Sequential(*_layers(64, 256, 256, 64))
    codes = (torch.randn(CODES, SIZE_OF_CODE, generator=generator) * 0.3).requires_grad_()
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters(), codes], GENERATOR_RATE)
    used = torch.zeros(CODES)
    for step in range(GENERATOR_STEPS):
        x = images[torch.randint(len(images), (96,), generator=generator)]
        z = encoder(x).view(-1, PLACES, SIZE_OF_CODE)
        index = nearest(z.detach(), codes.detach())
        chosen = codes[index]
        shown = decoder(replace_grad(chosen, z).flatten(1))
        near_codes = functional.mse_loss(chosen, z.detach()) + 0.25 * functional.mse_loss(z, chosen.detach())
        optimizer.zero_grad()
        (4 * functional.mse_loss(shown, x) + near_codes).backward()
        optimizer.step()
        used = 0.95 * used + 0.05 * torch.bincount(index.flatten(), minlength=CODES)
        # Codes that nothing is near to start again where something is.
        if step % 50 == 20 and step < GENERATOR_STEPS - 200:
            idle = (used < 0.05).nonzero()[:, 0]
            vectors = z.detach().flatten(0, 1)
            codes.data[idle] = vectors[torch.randint(len(vectors), (len(idle),), generator=generator)]
            used[idle] = 1
    decoder.requires_grad_(False)
    return codes.detach(), decoder


def _scorer(codes: Tensor, decoder: nn.Module, generator: torch.Generator) -> tuple[nn.Module, Tensor]:
    """Trained on digits, and on scribbles: random codes, two digits at once, noise."""
    images = data.digits()
    scorer = nn.Sequential(*_layers(64, 256, 128, 64), _Unit())
    letters = nn.Sequential(nn.EmbeddingBag(128, 64), nn.Linear(64, 64), _Unit())  # what is in a word, in any order
    sentences = [torch.tensor([_letters(sentence.format(word)) for word in WORDS]) for sentence in SENTENCES]
    optimizer = torch.optim.Adam([*scorer.parameters(), *letters.parameters()], SCORER_RATE)
    for step in range(SCORER_STEPS):
        chosen = torch.randint(len(images.train), (112,), generator=generator)
        x, labels = images.train[chosen], images.train_labels[chosen]
        with torch.no_grad():
            scribbles = _scribbles(x, codes, decoder, generator)
        views = jitter(torch.cat([x, scribbles]), generator)
        labels = torch.cat([labels, torch.full((len(scribbles),), len(WORDS) - 1)])
        similar = scorer(views) @ letters(sentences[step % len(sentences)]).T
        optimizer.zero_grad()
        functional.cross_entropy(20 * similar, labels).backward()
        optimizer.step()
    scorer.requires_grad_(False)
    return scorer, letters(sentences[1]).detach()


def _letters(sentence: str) -> list[int]:
    return [ord(letter) for letter in sentence.ljust(24)]


def _scribbles(x: Tensor, codes: Tensor, decoder: nn.Module, generator: torch.Generator) -> Tensor:
    random = codes[torch.randint(CODES, (40, PLACES), generator=generator)]
    both = 0.5 * (x[:24] + x[24:48])
    return torch.cat([decoder(random.flatten(1)).clamp(0, 1), both, torch.rand(24, 64, generator=generator)])


def start() -> Tensor:
    """(100, 4, 16): random codes; ten words for each seed."""
    generator = torch.Generator().manual_seed(1000)
    codes = built().codes
    return codes[torch.randint(CODES, (10 * SEEDS, PLACES), generator=generator)]


def pulled(world: str, variant: Variant) -> Tensor:
    """(100, 64): the pictures in the end, within [0, 1]."""
    codes, decoder, scorer, embedded, _, _ = built()
    z = start().requires_grad_()
    low, high = codes.amin(0), codes.amax(0)
    wanted = embedded[:10].repeat(SEEDS, 1).repeat(VIEWS, 1)
    generator = torch.Generator().manual_seed(2000)
    optimizer = torch.optim.Adam([z], RATE)

    def decoded() -> Tensor:
        chosen = codes[nearest(z.detach(), codes)]
        raw = decoder((chosen if world == WITHOUT else replace_grad(chosen, z)).flatten(1))
        return 0.5 + CONTRAST[world] * (raw - 0.5)

    for _ in range(STEPS):
        shown = variant.clamp(decoded(), 0.0, 1.0)
        if not shown.requires_grad:  # a plain lookup: nothing will ever reach z
            break
        views = scorer(jitter(shown.repeat(VIEWS, 1), generator))
        loss = (1 - (views * wanted).sum(-1)) + AWAY * torch.relu(views @ embedded[10])
        optimizer.zero_grad()
        (loss.sum() / VIEWS).backward()
        optimizer.step()
        with torch.no_grad():
            z.copy_(z.maximum(low).minimum(high))
    return decoded().detach().clamp(0, 1)


def sheet(pictures: Tensor) -> Tensor:
    """(3, 70, 100): a column for each word and a row for each of the first seven seeds, as one picture; a frame of grey around each."""
    framed = functional.pad(pictures[: 10 * ROWS].view(ROWS, 10, 8, 8), (1, 1, 1, 1), value=0.5)
    return framed.permute(0, 2, 1, 3).reshape(1, 10 * ROWS, 100).expand(3, -1, -1)


def _real(world: str) -> Tensor:
    images = data.digits()
    by_digit = [images.test[images.test_labels == digit][:ROWS] for digit in range(10)]
    return sheet(torch.stack(by_digit, 1).flatten(0, 1))


def _run(world: str, variant: Variant, settings: Settings) -> Outcome:
    pictures, words = pulled(world, variant), torch.arange(10).repeat(SEEDS)
    right = (torch.from_numpy(built().judge.predict(pictures.numpy())) == words).double().view(SEEDS, 10).mean(1)
    similar = (built().scorer(pictures) * built().embedded_words[words]).sum(-1).mean()
    numbers = {"right": float(right.mean()), "similar": float(similar)}
    return Outcome(numbers, {"picture": sheet(pictures)}, seeds=tuple(right.tolist()))


def _context(settings: Settings) -> dict[str, object]:
    return {
        **{"pictures": 10 * SEEDS, "seeds": SEEDS, "steps": STEPS, "rate": RATE, "chance": 0.1},
        "judge": built().judge_right,
        "test": sentences.test_of(f"{SEEDS} starts of ten pictures"),
    }


def _compare_replace_grad(worlds: Worlds, context: Context) -> Iterator[str]:
    if OURS in worlds[PLAIN]:
        with_it, without = (worlds[world][OURS] for world in (PLAIN, WITHOUT))
        is_better = SCORE.difference(with_it, without).verdict == BETTER
        result = "it is what makes the picture" if is_better else "not told apart over these starts"
        yield f"With replace_grad {SCORE.sentence(with_it)}, without it {SCORE.number(without)}: {result}."


TEXT_TO_DIGIT = Task(
    name="text_to_digit",
    title="A digit from a word, through a codebook",
    worlds=lambda settings: tuple(CONTRAST),
    run=_run,
    columns={"right": "share that the judge reads as asked", "similar": "what the scorer thinks of them, at most 1"},
    score=SCORE,
    headline=("right", "as asked"),
    has_leaves=False,
    setting=_SETTING,
    context=_context,
    unscored=(WITHOUT,),
    after=_compare_replace_grad,
    figure=Gallery("pictures", title="asked for 0 to 9, {world}", first={"real digits": _real}),
    order=180,
)
