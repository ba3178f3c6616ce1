"""override: torch's own functions with another backward rule, by family."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import must, unknown_name
from ..rule import OPS, RuleLike, RuleObject, make_call
from ..torch_table.forms import SWITCHES
from .context import Rewriting
from .mode import Replacement
from .sites import RuleBySite, Site

SiteRule = RuleLike | Callable[[Site], RuleLike | None]
_OPS = {family: OPS[op].replaced(name=family) for family, op in SWITCHES.items()}  # so that errors name the family


def override(**families: SiteRule | None) -> Rewriting:
    """Give torch's own functions another backward rule, in code that nobody edits.

    Forward:  torch's values, bit for bit.
    Backward: that of the rule, with the default edge of each family's op. Saves tensors of the same number and shapes as torch's op
        (relu: its input where torch keeps its result). A clamp of 4096 elements or more on CPU or CUDA saves one or two bits of each
        element if `pg.clamp` does with this rule. Under gelu=, silu=, leaky_relu= and hardsigmoid= a call saves a few bits of each
        element, as our op of that name does. A call that cannot be rewritten keeps torch's gradient and is in the report; no call
        raises an error that torch would not raise.

    Args:
        families: the families of functions to change, as in clamp="identity". docs/override.md lists the functions of each family.
            A call of hardsigmoid takes the rule of hardsigmoid= if both that and relu= are given. The value is a rule's name, a rule
            object, or a function. The function gets a Site (op, family, where, module, min, max) and returns a name, an object, or None
            for torch's own gradient. Inside torch.compile a site's where and module are not known.
    Returns: a context and decorator for the current thread. Contexts nest: the inner one decides for the families that it names.
        `report()` lists the calls that it rewrote, and those that it could not rewrite.
    Raises: ValueError for an unknown family or rule, or if none is given; TypeError for a value that is no rule.
    Example:
        >>> x = torch.tensor([-2.0, 0.0, 2.0], requires_grad=True)
        >>> with override(clamp="identity"):
        ...     torch.clamp(x, -1, 1).sum().backward()
        >>> x.grad
        tensor([1., 1., 1.])
    Source: new in pseudograd; TensorFlow 1 had gradient_override_map.
    """
    replacements: dict[str, Replacement] = {}
    arguments = []
    for family, rule in families.items():
        if family not in SWITCHES:
            raise unknown_name("override", "family", SWITCHES, family)
        if rule is None:
            continue
        op = _OPS[family]
        if isinstance(rule, (str, RuleObject)):
            row = op.rules.get(rule) if isinstance(rule, str) else None
            may_be_wrong = row is None or None in list(row.parameters.values())  # a parameter without a default
            if may_be_wrong:
                make_call(op, rule, op.default_edge)  # raises what is wrong with the rule
            replacements[family] = Replacement(rule, op)
        elif callable(rule):
            replacements[family] = Replacement(RuleBySite(rule), op)
        else:
            raise TypeError(must("override", family, "be a rule, or a function from a site to a rule", rule))
        arguments.append(f"{family}={rule!r}")
    if not replacements:
        raise ValueError(f"override: one of {', '.join(SWITCHES)} must be given a rule, got none. Name at least one.")
    return Rewriting(f"override({', '.join(arguments)})", replacements)
