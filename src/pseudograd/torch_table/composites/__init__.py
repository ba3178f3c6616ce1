"""The rows of `torch_forms` for functions of torch that run another of its rows inside, where no mode sees it.

`override` and `pin_edge` write such a call out in torch's own functions, so that the op inside goes their usual way. A row without `write`
is one that nobody has written out: contexts say that they do not reach it, and `diagnose` advises none. `scripts/find_composites.py` finds
what has to be here. Plain classes and loops: Dynamo reads this too.
"""

from __future__ import annotations

from ..forms import SPELLINGS, Form, add
from . import losses, normalising, pooling, quantising, recurrent, unreached

FORMS = [
    *losses.FORMS,
    *normalising.FORMS,
    *pooling.FORMS,
    *quantising.FORMS,
    *recurrent.FORMS,
    *unreached.FORMS,
]
for _form in FORMS:
    add(_form)


def reaches_inside(function: object, form: Form) -> bool:
    """Is this a function that is written out, with an op like the form's inside?"""
    spelling = SPELLINGS.get(function)
    return spelling is not None and spelling.form.write is not None and spelling.form.shares_a_switch_with(form)
