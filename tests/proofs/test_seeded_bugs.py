"""The seeded bugs still fit the source; that they are caught takes a command of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from proofs.seeded_bugs import BUGS, ROOT, Bug, build, main


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_still_fits_the_source(bug: Bug) -> None:
    path = ROOT / "aioqueue" / bug.file
    source = path.read_text(encoding="utf-8")
    broken = bug.applied(source)
    assert broken != source
    compile(broken, str(path), "exec")


def test_one_that_does_not_is_refused() -> None:
    with pytest.raises(LookupError, match=r"lost: found 0 times in aioqueue/core/machine\.py"):
        Bug("lost", "core/machine.py", "no such line", "").applied("")
    with pytest.raises(LookupError, match="found 2 times"):
        Bug("lost", "core/machine.py", "a", "").applied("aa")


@pytest.mark.slow
def test_a_build_is_a_copy_with_one_difference(tmp_path: Path) -> None:
    build(BUGS[0], tmp_path)
    different = [
        path.relative_to(ROOT)
        for path in (ROOT / "aioqueue").rglob("*.py")
        if (tmp_path / path.relative_to(ROOT)).read_bytes() != path.read_bytes()
    ]
    assert different == [Path("aioqueue") / BUGS[0].file]


def test_the_command_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert capsys.readouterr().out.splitlines() == [bug.name for bug in BUGS]
    with pytest.raises(SystemExit):
        main(["no such mistake"])
