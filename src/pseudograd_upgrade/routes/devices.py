"""Does this training do the same on an accelerator as on the CPU?"""

from __future__ import annotations

from dataclasses import replace

from ..answer import OTHER_OP, OWN, ROUNDING, Answer
from ..differences import Comparison, Difference, compare
from ..recorded import BACKWARD, Recorded
from ..upgrade import Question
from .routed import WITHOUT_TF32, Device

_CHECK = "ties and kinks are each device's to choose: pseudograd kinks --check --device cuda names those of this one"


class BetweenDevices(Question):
    """Asked twice where need be: what is left without TensorFloat-32 is looked at more closely."""

    new_python: Device
    sides = "devices"

    def answer(self) -> Answer:
        found = super().answer()
        if found.kind != OTHER_OP:
            return found
        self.new_python = replace(self.new_python, is_exact=True)
        exact = super().answer()
        if exact.survives:
            return self._of_tf32(found, exact)
        if exact.kind == OTHER_OP and exact.losses != found.losses:
            return replace(exact, notes=(*exact.notes, f"asked with {WITHOUT_TF32}; with it on, more differs"))
        return exact

    def _notes_of(self, old: Recorded, new: Recorded) -> tuple[str, ...]:
        if new.status or new.raw.get("uses_device"):
            return ()
        return (f"the run on {self.new_python.route} put nothing on a device",)

    def _of_tf32(self, found: Answer, exact: Answer) -> Answer:
        where = "" if found.difference is None else f" from {found.difference.old.site.where} on"
        why = f"it is TensorFloat-32{where}, which keeps 10 bits of 23: with it off the answer is {exact.kind!r}"
        step = (
            "for the CPU's precision set allow_tf32 = False in torch.backends.cudnn and in torch.backends.cuda.matmul"
        )
        return replace(exact, kind=ROUNDING, why=(why, *exact.why), next_steps=(*exact.next_steps, step))

    def _of_difference(self, old: Recorded, new: Recorded, found: Comparison, first: Difference) -> Answer:
        if not self.new_python.is_exact:
            return super()._of_difference(old, new, found, first)
        again = compare(new, self.runner.run(self.new_python, self.schedule))
        if again.first is not None:
            why = f"the same run twice on {self.new_python.route}, with the same seeds, differs here by more than rounding"
            step = "torch.use_deterministic_algorithms(True) names the calls that do not repeat there; then ask again"
            return self._made(OWN, old, new, again, why=(why,), next_steps=(step,))
        answer = super()._of_difference(old, new, found, first)
        return replace(answer, next_steps=(*answer.next_steps, _CHECK)) if _may_be_a_tie(first) else answer


def _may_be_a_tie(first: Difference) -> bool:
    """Do gradients alone differ, or what is a whole number, such as the index of one among equals?"""
    if first.only_old or first.only_new:
        return False
    return first.old.site.kind == BACKWARD or any(kept.shape.startswith("int") for kept in first.old.tensors)
