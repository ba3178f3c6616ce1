"""The base of the records: what `dataclass` would do, by the same errors."""

import copy
import re

import pytest

from pseudograd.record import Record


class Point(Record):
    """One with a default, and one without."""

    x: int
    y: int = 2


class Named(Point, kw_only=True):
    name: str

    def __post_init__(self) -> None:
        vars(self)["text"] = f"{self.name}{self.x}"


def test_fields_by_position_by_name_and_by_default() -> None:
    for point in (Point(1), Point(1, 2), Point(x=1), Point(y=2, x=1)):
        assert vars(point) == {"x": 1, "y": 2}
    assert vars(Named(x=1, name="a")) == {"x": 1, "y": 2, "name": "a", "text": "a1"}


def test_what_a_record_derives_is_derived_again_when_it_is_replaced() -> None:
    first = Named(x=1, name="a")
    other = first.replaced(x=3)
    assert vars(other) == {"x": 3, "y": 2, "name": "a", "text": "a3"}
    assert first.x == 1
    assert vars(copy.deepcopy(other)) == vars(other)


def test_a_record_equals_only_itself() -> None:
    point = Point(1)
    assert point == point
    assert point != Point(1)
    assert len({point, Point(1)}) == 2


@pytest.mark.parametrize(
    ("values", "named", "wrong"),
    [((), {}, "x"), ((), {"y": 1}, "x"), ((1, 2, 3), {}, "none"), ((1,), {"z": 3}, "z"), ((1,), {"x": 1}, "none")],
)
def test_wrong_fields_are_refused(values: tuple[int, ...], named: dict[str, int], wrong: str) -> None:
    message = f"Point needs x, each once; wrong or missing: {wrong}"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        Point(*values, **named)


def test_nothing_can_be_set_or_deleted() -> None:
    point = Point(1)
    for change in (lambda: setattr(point, "x", 2), lambda: setattr(point, "z", 2), lambda: delattr(point, "x")):
        with pytest.raises(AttributeError, match=r"^Point\.. must not be set: records do not change"):
            change()
    assert vars(point) == {"x": 1, "y": 2}
