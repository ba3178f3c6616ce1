"""What every run tests of a product of parameters: a choice of its cells, made from what they show. `--slow` runs the others."""

import contextlib
import heapq
import inspect
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import wraps
from typing import Any, TypeVar

import pytest
import torch

Cell = TypeVar("Cell")


def covering(cells: Sequence[Cell], shown_by: Callable[[Cell], Iterable[Hashable]]) -> list[bool]:
    """For each cell whether it is taken: so few that whatever any cell shows is still shown. A new cell that shows something is taken.

    Greedy: always the cell that shows most of what is missing, of equals the first. What a cell would add never grows, so that most
    cells are looked at once.
    """
    shown = [frozenset(shown_by(cell)) for cell in cells]
    missing = set[Hashable]().union(*shown)
    taken = [False] * len(cells)
    queue = [(-len(facts), position) for position, facts in enumerate(shown)]
    heapq.heapify(queue)
    while missing:
        _, position = heapq.heappop(queue)
        adds = len(shown[position] & missing)
        if queue and (-adds, position) > queue[0]:
            heapq.heappush(queue, (-adds, position))
            continue
        taken[position] = True
        missing -= shown[position]
    return taken


def pairs(*values: Hashable) -> list[Hashable]:
    """Every two of the values, by their places: a covering of these has each value beside each other one that it can stand beside."""
    return list(itertools.combinations(enumerate(values), 2))


def marks_of(is_taken: bool, mark: pytest.MarkDecorator = pytest.mark.slow) -> Any:
    """The marks of a cell."""
    return () if is_taken else mark


def slow_but(quick: Iterable[Any], values: Iterable[Any], mark: pytest.MarkDecorator = pytest.mark.slow) -> list[Any]:
    """Each value (or tuple of them) as a parameter, marked slow, or as `mark`, if it is not among the quick ones, which must be there."""
    all_of_them, wanted = list(values), list(quick)
    assert all(parameter in all_of_them for parameter in wanted), f"{wanted} are not all among {all_of_them}"
    cells = [parameter if type(parameter) is tuple else (parameter,) for parameter in all_of_them]
    return [
        pytest.param(*cell, id="-".join(map(_name, cell)), marks=marks_of(parameter in wanted, mark))
        for parameter, cell in zip(all_of_them, cells, strict=True)
    ]


def one_in(count: int, *axes: Iterable[Any]) -> list[Any]:
    """Every combination of the axes, all but one in `count` marked slow, along the diagonals: so that each value of each axis stays.

    That holds where the positions of the other axes add up to at least count - 1.
    """
    axes_of_values = [list(axis) for axis in axes]
    for axis in axes_of_values:
        others = sum(len(other) - 1 for other in axes_of_values) - (len(axis) - 1)
        assert others >= count - 1, f"one in {count} would leave out whole values of {axis}"
    return [
        pytest.param(
            *(value for _, value in combination),
            id="-".join(_name(value) for _, value in combination),
            marks=marks_of(sum(position for position, _ in combination) % count == 0),
        )
        for combination in itertools.product(*(enumerate(axis) for axis in axes_of_values))
    ]


def every_pair(*axes: Iterable[Any]) -> list[Any]:
    """Every combination of the axes, of which each run has so many that each value meets each value of every other axis."""
    return as_parameters(list(itertools.product(*axes)), lambda cell: pairs(*map(_name, cell)))


def as_parameters(
    cells: Sequence[tuple[Any, ...]], shown_by: Callable[[tuple[Any, ...]], Iterable[Hashable]]
) -> list[Any]:
    """The cells as parameters, those marked slow that a covering leaves out."""
    return [
        pytest.param(*cell, id="-".join(map(_name, cell)), marks=marks_of(is_taken))
        for cell, is_taken in zip(cells, covering(cells, shown_by), strict=True)
    ]


def _name(value: Any) -> str:
    if type(value) is tuple:
        return "/".join(map(_name, value))
    return str(getattr(value, "__name__", value)).removeprefix("torch.")


def folded(test: Callable[..., None]) -> Callable[..., None]:
    """Makes one test of all cells of the `parametrize` decorators below. A failure names its cell.

    Cells with the marker `slow` or `program` become a second and a third test. A cell that is expected to fail stays a test of its own.
    """
    marks = test.pytestmark  # type: ignore[attr-defined]
    axes = [mark for mark in marks if mark.name == "parametrize"]
    assert not any(axis.kwargs.get("indirect") for axis in axes), (
        "pytest makes a fixture for each cell of its own tests alone"
    )
    names = [name for axis in axes for name in _names(axis)]
    groups: dict[str, list[Any]] = {}
    for product in itertools.product(*(_cells(axis) for axis in axes)):
        cell = pytest.param(
            *(value for part in product for value in part.values),
            id="-".join(str(part.id) for part in product),
            marks=[mark for part in product for mark in part.marks],
        )
        own = {mark.name for mark in cell.marks}
        groups.setdefault(str(cell.id) if own - {"slow", "program"} else "-".join(sorted(own)) or "usual", []).append(
            cell
        )

    @wraps(test)
    def run(cells: list[Any], **fixtures: Any) -> None:
        for number, cell in enumerate(cells):
            torch.default_generator.manual_seed(0)
            if cell.marks:  # a program, which may compile
                torch._dynamo.reset()
            try:
                with _renewed(fixtures, number) as own_fixtures:
                    test(**dict(zip(names, cell.values, strict=True)), **own_fixtures)
            except pytest.skip.Exception:
                if len(cells) == 1:
                    raise
            except Exception as error:
                raise AssertionError(f"{cell.id}: {type(error).__name__}: {error}") from error

    del run.__wrapped__  # type: ignore[attr-defined]  # pytest would read its parameters
    fixtures = [name for name in inspect.signature(test).parameters if name not in names]
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in ("cells", *fixtures)]
    )
    run.pytestmark = [mark for mark in marks if mark.name != "parametrize"]  # type: ignore[attr-defined]
    params = [pytest.param(cells, id=name, marks=cells[0].marks) for name, cells in groups.items()]
    return pytest.mark.parametrize("cells", params)(run)


@contextlib.contextmanager
def _renewed(fixtures: dict[str, Any], number: int) -> Iterator[dict[str, Any]]:
    """pytest's own fixtures as each cell would get them."""
    renewed = dict(fixtures)
    with contextlib.ExitStack() as stack:
        if "monkeypatch" in fixtures:
            renewed["monkeypatch"] = stack.enter_context(fixtures["monkeypatch"].context())
        if "tmp_path" in fixtures:
            renewed["tmp_path"] = fixtures["tmp_path"] / str(number)
            renewed["tmp_path"].mkdir()
        for name in {"capsys", "capfd"} & set(fixtures):
            fixtures[name].readouterr()
        yield renewed


def _names(axis: pytest.Mark) -> list[str]:
    names = axis.args[0]
    return [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)


def _cells(axis: pytest.Mark) -> list[Any]:
    """The values of one `parametrize`, each as pytest.param with an id."""
    ids, count = axis.kwargs.get("ids"), len(_names(axis))
    cells = []
    for position, value in enumerate(axis.args[1]):
        if not hasattr(value, "marks"):
            value = pytest.param(*(value if count > 1 else (value,)))
        label = value.id
        if label is None and ids is not None:
            label = "-".join(str(ids(part)) for part in value.values) if callable(ids) else list(ids)[position]
        cells.append(value._replace(id=label or "-".join(_name(part) for part in value.values)))
    return cells
