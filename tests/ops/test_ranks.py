"""A rule that reads grad does not add up over ranks; where ranks share a parameter, its clamp says so."""

import warnings

import pytest
import torch

import pseudograd as pg

PARAMETER = torch.nn.Parameter(torch.zeros(2))


def _with_ranks(monkeypatch: pytest.MonkeyPatch, count: int, initialized: bool = True) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: initialized)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda *_: count)


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no distributed")
@pytest.mark.parametrize("rule", ["inward", "sign", "elastic", "leaky_inward", "inverting"])
def test_warns_of_a_shared_parameter(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _with_ranks(monkeypatch, 2)
    with pytest.warns(
        UserWarning, match=f"clamp/{rule}: x is a parameter and 2 ranks share it.*do not add up.*linear in grad"
    ):
        pg.clamp(PARAMETER, -1, 1, rule=rule)
    with pytest.warns(UserWarning, match="2 ranks share it") as seen:
        pg.clamp(PARAMETER, -1, 1, rule="zero", edge="inward")
    assert seen[0].filename == __file__


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no distributed")
def test_is_silent_where_nothing_is_shared_or_everything_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _with_ranks(monkeypatch, 2)
        pg.clamp(PARAMETER, -1, 1, rule="zero")
        pg.clamp(PARAMETER, -1, 1, rule="identity")
        pg.clamp(PARAMETER, -1, 1, rule="identity", edge="inward")
        pg.clamp(PARAMETER, -1, 1, rule="leaky")
        pg.clamp(PARAMETER * 1, -1, 1)
        pg.clamp(PARAMETER.detach(), torch.tensor(-1.0))
        _with_ranks(monkeypatch, 1)
        pg.clamp(PARAMETER, -1, 1)
        _with_ranks(monkeypatch, 2, initialized=False)
        pg.clamp(PARAMETER, -1, 1)
