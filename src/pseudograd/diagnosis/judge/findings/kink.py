"""A value that starts exactly on a bound: whether it ever learns is up to the convention there."""

from __future__ import annotations

from collections.abc import Iterator

from ....torch_table.eras import installed_era
from ....torch_table.forms import shares_at_the_edge
from ...records import Finding
from .edge import ISSUE
from .kind import Evidence, Kind, percent


def _find(evidence: Evidence) -> Iterator[Finding]:
    for one in evidence.values:
        if not one.upstream or not one.starts_on_a_bound or one.is_rewritten:
            continue
        from_form = shares_at_the_edge(one.form, one.has_tensor_bound)
        if one.is_pinned:
            from_form = {era: share for era, share in from_form.items() if era == installed_era()}
        if not from_form or all(share == 1 for share in from_form.values()):
            continue
        names = [leaf.name for leaf in evidence.leaves.named(one.leaf)] if one.leaf else []
        if any(map(evidence.deliberate.parameter, names)):
            continue
        who, it = (f"Every entry of {names[0]}", "it") if names else ("Every element that enters", "nothing behind it")
        says = [
            f"{era} passes {percent(share)} there" + (f", so {it} never trains" if share == 0 and names else "")
            for era, share in from_form.items()
        ]
        here = installed_era()
        better = next((era for era, share in from_form.items() if share > from_form.get(here, 1.0)), None)
        start = f"start {names[0] if names else 'it'} inside the range, not at the bound"
        yield KIND.at(
            one.place,
            f"{who} ({one.elements:,}) starts exactly at {one.shown_bounds} of this {one.op}: {'; '.join(says)}; inward passes what leads "
            "inside",
            "it was initialised there"
            if names
            else "what comes before it gives its bound, such as a last layer of zeros",
            f"with pseudograd.pin_edge({better!r}): ...  # or {start}" if better else f"{start[0].upper()}{start[1:]}.",
            issue=ISSUE if len(set(from_form.values())) > 1 else None,
            is_muted=evidence.deliberate.place(one.place),
        )


KIND = Kind(
    code="kink",
    number="PG202",
    order=20,
    find=_find,
    meaning="a parameter, or all that enters a clamp or relu, stands exactly on a bound in the first step",
    details="It says what each era of torch passes there, and what `inward` passes",
    next_step="`pin_edge`, or another start",
    bad="""\
import torch
from pseudograd import diagnose

p = torch.nn.Parameter(torch.zeros(3))
with diagnose() as d:
    p.clamp(-1.0, 0.0).sum().backward()  # PG202
""",
    good="""\
import torch
from pseudograd import diagnose

p = torch.nn.Parameter(torch.full((3,), -0.5))
with diagnose() as d:
    p.clamp(-1.0, 0.0).sum().backward()
""",
)
