"""The configurations that are explored."""

from __future__ import annotations

from typing import Any, Final

from proofs.rollouts.world import Setting

ORDERS: Final = ("ready", "oldest", "strict")
SETTINGS: Final[list[Setting]] = []

_OF_A_SETTING: Final = frozenset(Setting.__dataclass_fields__) - {"options"}


def _add(name: str, prompts: int, *, batch: float = 1, ahead: float = 1, **given: Any) -> None:
    of_setting = {key: given.pop(key) for key in list(given) if key in _OF_A_SETTING}
    options = {"batch_size": batch, "steps_ahead": ahead, "max_refused": None, **given}
    SETTINGS.append(Setting(name, prompts, options=options, **of_setting))


for _order in ORDERS:
    for _batch, _ahead in ((1, 0), (1, 1), (2, 0), (2, 1), (1, 2)):
        _add(
            f"{_order} B{_batch} S{_ahead} refuse",
            4,
            batch=_batch,
            ahead=_ahead,
            order=_order,
            faults={"refuse": 2},
        )
    _add(f"{_order} stop, untake", 3, order=_order, faults={"stop": 1, "untake": 1, "refuse": 1})
    _add(f"{_order} B2 restore", 4, batch=2, order=_order, faults={"restore": 1, "refuse": 1})
    _add(f"{_order} restore twice", 3, order=_order, faults={"restore": 2, "refuse": 1})
    _add(
        f"{_order} B2 restore, stored",
        4,
        batch=2,
        order=_order,
        stores=True,
        faults={"restore": 1, "refuse": 1},
    )
    _add(
        f"{_order} B2 S0 G2 drop what fails",
        3,
        batch=2,
        ahead=0,
        group_size=2,
        order=_order,
        on_error="drop",
        faults={"fail": 2, "refuse": 1},
    )
    _add(
        f"{_order} G2 retry, partial, limit 2",
        3,
        group_size=2,
        order=_order,
        on_error="partial",
        tries=2,
        limit=2,
        faults={"fail": 3},
    )
    _add(
        f"{_order} G2 at least 2",
        3,
        group_size=2,
        order=_order,
        on_error="partial",
        min_group_size=2,
        faults={"fail": 2},
    )
    _add(f"{_order} raise", 3, order=_order, faults={"fail": 1, "refuse": 1})
    for _trainer in ("second", "failing", "late"):
        _add(f"{_order} {_trainer}", 4, trainer=_trainer, order=_order, faults={"refuse": 1})
        _add(
            f"{_order} B2 S0 {_trainer}",
            4,
            batch=2,
            ahead=0,
            trainer=_trainer,
            order=_order,
            faults={"refuse": 1},
        )
    _add(
        f"{_order} drain, fail",
        3,
        order=_order,
        drain="ended",
        tries=2,
        faults={"fail": 1, "refuse": 1},
    )
    _add(f"{_order} drain, safe points", 3, order=_order, drain="ended", faults={"park": 2})
    _add(
        f"{_order} S2 G2 drain",
        3,
        ahead=2,
        group_size=2,
        limit=2,
        order=_order,
        drain="ended",
        faults={"refuse": 1},
    )
    _add(
        f"{_order} G2 drain to safe points",
        3,
        group_size=2,
        limit=3,
        order=_order,
        drain="safe",
        on_error="drop",
        faults={"fail": 1},
    )
    _add(
        f"{_order} weigh B2 S0",
        4,
        batch=2,
        ahead=0,
        order=_order,
        is_weighed=True,
        weights=(1, 2),
        faults={"refuse": 1},
    )
    _add(f"{_order} weigh B2 S1", 4, batch=2, order=_order, is_weighed=True, weights=(1, 2))
    for _batch, _ahead in ((2, 0), (3, 0), (2, 1), (3, 1)):
        _add(
            f"{_order} weigh B{_batch} S{_ahead} max 2",
            4,
            batch=_batch,
            ahead=_ahead,
            order=_order,
            is_weighed=True,
            max_weight=2,
            weights=(1, 2),
            faults={"refuse": 1},
        )
    _add(
        f"{_order} G2 fail in a publication",
        2,
        group_size=2,
        order=_order,
        on_error="drop",
        faults={"fail": 2},
    )
    _add(f"{_order} S0 evaluate", 2, ahead=0, order=_order, faults={"evaluate": 1})
    _add(
        f"{_order} close, limit, evaluate",
        3,
        order=_order,
        faults={"close": 1, "limit": 1, "evaluate": 1},
    )
    _add(
        f"{_order} G2 evaluate, drain, withdraw",
        2,
        group_size=2,
        limit=1,
        order=_order,
        drain="ended",
        faults={"evaluate": 2, "withdraw": 1},
    )
    _add(
        f"{_order} G2 evaluate, fail, stop",
        2,
        group_size=2,
        limit=2,
        order=_order,
        on_error="drop",
        faults={"evaluate": 1, "fail": 2, "stop": 1},
    )
    _add(f"{_order} grow, shrink", 4, order=_order, faults={"grow": 1, "shrink": 1})
    _add(
        f"{_order} B2 drop_remainder",
        3,
        batch=2,
        order=_order,
        drop_remainder=True,
        faults={"refuse": 1},
    )
    _add(f"{_order} the source fails", 3, order=_order, source_fails=True, faults={"refuse": 1})
    for _batch, _part in ((2, 0.5), (4, 0.5), (2, 1.5), (3, 0.1)):
        _add(
            f"{_order} B{_batch} S{_part} a part of a step",
            5,
            batch=_batch,
            ahead=_part,
            order=_order,
            faults={"refuse": 1},
        )
    for _trainer in ("each", "second"):
        _add(
            f"{_order} {_trainer} give back",
            3,
            trainer=_trainer,
            order=_order,
            faults={"give_back": 2, "refuse": 1},
        )
    _add(
        f"{_order} B2 S0 give back",
        4,
        batch=2,
        ahead=0,
        order=_order,
        faults={"give_back": 1, "refuse": 1},
    )
    # What the first step of a call, and the end of a cancelled one, may come between.
    _add(f"{_order} enter", 3, order=_order, enters=True, faults={"refuse": 1})
    _add(
        f"{_order} G2 enter, drop",
        2,
        group_size=2,
        order=_order,
        on_error="drop",
        enters=True,
        faults={"fail": 1},
    )
    _add(
        f"{_order} G2 enter, drain, stop",
        2,
        group_size=2,
        limit=2,
        order=_order,
        drain="ended",
        enters=True,
        faults={"stop": 1},
    )
    _add(
        f"{_order} G2 cancelled calls last",
        3,
        group_size=2,
        limit=2,
        order=_order,
        on_error="drop",
        lingers=True,
        faults={"fail": 2},
    )
    _add(
        f"{_order} G2 cancelled calls last, drain",
        3,
        group_size=2,
        limit=3,
        order=_order,
        on_error="drop",
        drain="ended",
        lingers=True,
        faults={"fail": 1},
    )
    _add(
        f"{_order} G2 calls expire",
        3,
        group_size=2,
        limit=3,
        order=_order,
        on_error="drop",
        tries=2,
        drain="ended",
        faults={"expire": 2},
    )
    _add(
        f"{_order} G2 calls expire, safe points",
        2,
        group_size=2,
        limit=3,
        order=_order,
        on_error="partial",
        drain="safe",
        faults={"expire": 2, "stop": 1},
    )
    _add(
        f"{_order} G2 retries rest",
        2,
        group_size=2,
        order=_order,
        on_error="drop",
        tries=2,
        rests=True,
        faults={"fail": 3},
    )
    _add(
        f"{_order} retries rest, drain, stop",
        2,
        order=_order,
        tries=2,
        rests=True,
        drain="ended",
        faults={"fail": 2, "stop": 1},
    )
    for _trainer in ("each", "second"):
        _add(
            f"{_order} {_trainer} B2 shorten",
            4,
            batch=2,
            trainer=_trainer,
            order=_order,
            on_refused="shorten",
            faults={"refuse": 3},
        )
        _add(
            f"{_order} {_trainer} B2 S0 shorten",
            4,
            batch=2,
            ahead=0,
            trainer=_trainer,
            order=_order,
            on_refused="shorten",
            faults={"refuse": 4},
        )
    _add(
        f"{_order} B2 shorten, restore",
        4,
        batch=2,
        ahead=0.5,
        order=_order,
        on_refused="shorten",
        faults={"refuse": 2, "restore": 1},
    )
    _add(
        f"{_order} B2 S0 shorten, give back",
        3,
        batch=2,
        ahead=0,
        order=_order,
        on_refused="shorten",
        faults={"refuse": 2, "give_back": 1},
    )
    _add(
        f"{_order} B2 S0 shorten, drop_remainder",
        3,
        batch=2,
        ahead=0,
        order=_order,
        on_refused="shorten",
        drop_remainder=True,
        faults={"refuse": 2},
    )
    for _refused in ("replace", "shorten"):
        _add(
            f"{_order} B2 {_refused} starves",
            6,
            batch=2,
            ahead=0.5,
            order=_order,
            on_refused=_refused,
            max_refused=1,
            faults={"refuse": 4},
        )
    _add(
        f"{_order} drop starves",
        4,
        order=_order,
        on_error="drop",
        max_refused=2,
        faults={"fail": 3},
    )
    _add(f"{_order} G2 frozen", 2, group_size=2, order=_order, faults={"freeze": 2})

for _order in ("ready", "oldest"):
    for _batch, _ahead, _most in ((1, 1, 1), (2, 1, 1), (1, 1, 2), (1, 2, 2), (2, 1, 2)):
        _add(
            f"{_order} wait B{_batch} S{_ahead} M{_most}",
            5,
            batch=_batch,
            ahead=_ahead,
            order=_order,
            max_staleness=_most,
            on_stale="wait",
            faults={"refuse": 1},
        )
    for _how in ("drop", "cancel"):
        for _prompt in ("drop", "again"):
            _stale: dict[str, Any] = {"max_staleness": 1, "on_stale": _how, "stale_prompt": _prompt}
            _add(f"{_order} {_how} {_prompt}", 4, order=_order, faults={"refuse": 1}, **_stale)
            _add(f"{_order} {_how} {_prompt} B2", 5, batch=2, order=_order, **_stale)
            _add(
                f"{_order} {_how} {_prompt} restore",
                3,
                order=_order,
                faults={"restore": 1},
                **_stale,
            )
    for _trainer in ("second", "failing", "late"):
        _add(
            f"{_order} wait {_trainer}",
            5,
            trainer=_trainer,
            order=_order,
            max_staleness=1,
            on_stale="wait",
            faults={"refuse": 1},
        )
        _add(
            f"{_order} wait {_trainer} B2",
            5,
            batch=2,
            trainer=_trainer,
            order=_order,
            max_staleness=1,
            on_stale="wait",
        )
        for _how in ("drop", "cancel"):
            _add(
                f"{_order} {_how} again {_trainer}",
                4,
                trainer=_trainer,
                order=_order,
                max_staleness=1,
                on_stale=_how,
                faults={"refuse": 1},
            )
    _add(
        f"{_order} wait grow, shrink",
        4,
        order=_order,
        max_staleness=1,
        on_stale="wait",
        faults={"grow": 1, "shrink": 1},
    )
    _add(
        f"{_order} wait restore",
        3,
        order=_order,
        max_staleness=1,
        on_stale="wait",
        faults={"restore": 1, "refuse": 1},
    )
    _add(
        f"{_order} wait restore, stored",
        3,
        order=_order,
        max_staleness=1,
        on_stale="wait",
        stores=True,
        faults={"restore": 1, "refuse": 1},
    )
    _add(
        f"{_order} wait give back B2",
        4,
        batch=2,
        order=_order,
        max_staleness=1,
        on_stale="wait",
        faults={"give_back": 1},
    )
    _add(
        f"{_order} wait shorten B2",
        4,
        batch=2,
        order=_order,
        max_staleness=1,
        on_stale="wait",
        on_refused="shorten",
        faults={"refuse": 2},
    )
    _add(
        f"{_order} wait G2 frozen",
        3,
        group_size=2,
        limit=2,
        order=_order,
        max_staleness=1,
        on_stale="wait",
        faults={"freeze": 2},
    )
    _add(
        f"{_order} cancel G2 again",
        3,
        group_size=2,
        order=_order,
        max_staleness=1,
        on_stale="cancel",
    )
    _add(
        f"{_order} cancel G2 again, cancelled calls last",
        3,
        group_size=2,
        limit=3,
        order=_order,
        max_staleness=1,
        on_stale="cancel",
        lingers=True,
    )
    _add(
        f"{_order} cancel frozen",
        4,
        order=_order,
        max_staleness=1,
        on_stale="cancel",
        faults={"freeze": 2},
    )
    _add(
        f"{_order} cancel drop frozen",
        4,
        order=_order,
        max_staleness=1,
        on_stale="cancel",
        stale_prompt="drop",
        faults={"freeze": 1},
    )
    _add(f"{_order} cancel enter", 3, order=_order, max_staleness=1, on_stale="cancel", enters=True)
_add("strict drop again", 4, order="strict", max_staleness=1, on_stale="drop", faults={"refuse": 1})
_add(
    "strict drop again B2 second",
    5,
    batch=2,
    trainer="second",
    order="strict",
    max_staleness=1,
    on_stale="drop",
)
_add(
    "strict cancel again second",
    4,
    trainer="second",
    order="strict",
    max_staleness=1,
    on_stale="cancel",
    faults={"refuse": 1},
)
for _order in ORDERS:
    for _batch in (1, 2):
        _add(
            f"{_order} B{_batch} lose",
            4,
            batch=_batch,
            ahead=2,
            trainer="late",
            order=_order,
            faults={"lose": 2, "refuse": 1},
        )
_add(
    "strict wait late",
    4,
    trainer="late",
    order="strict",
    max_staleness=1,
    on_stale="wait",
    faults={"refuse": 1},
)

# In a child process, which the trainer tells when weights are published.
for _drain in ("no", "ended"):
    _process: dict[str, Any] = {"in_process": True, "lingers": True, "drain": _drain}
    for _batch, _ahead in ((1, 0), (1, 1), (2, 0)):
        _add(
            f"process B{_batch} S{_ahead}, drain {_drain}",
            3,
            batch=_batch,
            ahead=_ahead,
            limit=1,
            faults={"refuse": 1},
            **_process,
        )
    _add(f"process strict, drain {_drain}", 3, order="strict", limit=1, **_process)
    _add(
        f"process G2 drop, retry, drain {_drain}",
        2,
        group_size=2,
        limit=2,
        on_error="drop",
        tries=2,
        faults={"fail": 2},
        **_process,
    )
    for _trainer in ("second", "failing"):
        _add(f"process {_trainer}, drain {_drain}", 3, trainer=_trainer, limit=1, **_process)
    _add(f"process abandon, drain {_drain}", 2, limit=1, faults={"abandon": 1}, **_process)
    _add(
        f"process dies, drain {_drain}",
        2,
        limit=1,
        on_error="drop",
        tries=2,
        faults={"die": 1},
        **_process,
    )
    _add(
        f"process dies, abandon, drain {_drain}",
        1,
        limit=1,
        on_error="drop",
        tries=2,
        faults={"die": 1, "abandon": 1},
        **_process,
    )
    _add(f"process stop, drain {_drain}", 2, limit=1, faults={"stop": 1}, **_process)
    _add(
        f"process stop, dies, drain {_drain}", 1, limit=1, faults={"stop": 1, "die": 1}, **_process
    )
    _add(
        f"process evaluate, drain {_drain}",
        1,
        limit=1,
        faults={"evaluate": 1, "withdraw": 1},
        **_process,
    )
    _add(
        f"process cancel again, drain {_drain}",
        3,
        limit=2,
        max_staleness=1,
        on_stale="cancel",
        **_process,
    )
