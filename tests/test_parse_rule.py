"""Rules as text: what a command line may say, and what it is told otherwise."""

import pytest

from pseudograd import rules
from pseudograd.ops.bounds import CLAMP
from pseudograd.parse_rule import items, parsed
from pseudograd.rule import OPS, RuleLike

from .choices import folded

RULES = ", ".join(sorted(OPS["clamp"].rules))


@pytest.mark.parametrize(
    ("text", "rule", "edge"),
    [
        ("inward", "inward", None),
        (" zero / half ", "zero", "half"),
        ("leaky(0.2)", rules.leaky(0.2), None),
        ("leaky(slope=2e-1)/open", rules.leaky(0.2), "open"),
        ("elastic( width = 0.5 ) / inward", rules.elastic(0.5), "inward"),
        ("elastic()", "elastic", None),
        ("inward()", "inward", None),
    ],
)
def test_what_a_text_means(text: str, rule: RuleLike, edge: str | None) -> None:
    assert parsed(CLAMP, text, "compare: --rules") == (rule, edge)


@pytest.mark.parametrize(
    "text", ["window(2, 3)", "window(scale=2, height=3)", "window(height=3, scale=2)", "window(2, height=3)"]
)
def test_values_come_in_the_order_of_the_rule_or_by_name(text: str) -> None:
    rule, _ = parsed(OPS["sign"], text, "run: --override")
    assert not isinstance(rule, str)
    assert dict(rule.parameters) == {"scale": 2.0, "height": 3.0}


def test_commas_inside_parentheses_separate_nothing() -> None:
    assert items("inward, window(2, 3)/half ,zero") == ["inward", "window(2, 3)/half", "zero"]
    assert items("inward") == ["inward"]
    assert items("a,,b") == ["a", "", "b"]


FORM = "run: --override must be NAME, NAME(VALUE) or NAME(KEY=VALUE, ...), got "


@folded
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", FORM + "''."),
        ("leaky(0.2", FORM + "'leaky(0.2'."),
        ("leaky(0.2)x", FORM + "'leaky(0.2)x'."),
        ("leaky((0.2))", FORM + "'leaky((0.2))'."),
        ("inward/", FORM + "'inward/'."),
        ("leaky/opn", "clamp: edge must be one of closed, half, inward, open, got 'opn'. Did you mean 'open'?"),
        ("ste(0.2)", f"clamp: rule must be one of {RULES}, got 'ste'. 'ste' is 'identity' here."),
        ("elastic(with=0.2)", "elastic: parameter must be one of width, got 'with'. Did you mean 'width'?"),
        ("leaky(much)", "leaky: slope must be a number, got 'much'. The default is 0.1."),
        ("leaky(nan)", "leaky: slope must be finite and above 0, got nan. The default is 0.1."),
        ("leaky(0.1, 0.2)", "leaky: parameters must be at most 1, got '0.1, 0.2'."),
        ("inward(0.2)", "inward: parameters must be absent, got '0.2'."),
    ],
)
def test_what_is_wrong_with_a_text(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the whole text is compared
        parsed(CLAMP, text, "run: --override")
    assert str(caught.value) == message


def test_a_parameter_is_given_once() -> None:
    with pytest.raises(ValueError, match=r"window: scale must be given once, got '2, scale=3'\."):
        parsed(OPS["sign"], "window(2, scale=3)", "run: --override")
