"""Imports point one way, the machine stays pure, and `import aioqueue` brings in nothing extra."""

from __future__ import annotations

import ast
import functools
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pytest

import aioqueue

ROOT = Path(aioqueue.__file__).parent

ROOMS = (
    ("errors", "base", "system"),
    ("core.elements",),
    ("core.storage",),
    ("core",),
    ("worlds",),
    ("queues",),
    ("telemetry",),
    ("coordination",),
    ("processes",),
    ("batcher", "latest"),
    ("remote",),
    ("sharing",),
    ("sync",),
    ("",),  # the package itself
    ("preemption",),
    ("items",),
    ("fingerprints",),
    ("sources",),
    ("workers",),
    ("workers.executors",),
    ("pipeline.batches",),
    ("pipeline.nodes",),
    ("pipeline.stages",),
    ("pipeline.state",),
    ("pipeline",),
    ("sources.kinds",),
    ("pipeline.streams",),
    ("readers",),
    ("sinks",),
    ("inputs",),
    ("testing",),
    ("rl",),
    ("torch", "prometheus", "ray", "asgi"),
    ("compat",),
    ("inspection",),
    ("__main__",),
)
"""The folders, from the bottom to the top. A folder needs those below it, and none above.

A room below another one's name, such as `core.storage` below `core`, is a folder of its own.
"""


def module_name(path: Path) -> str:
    parts = ("aioqueue", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """A file, parsed: once, however many rules read it."""
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def imports(path: Path, *, deferred: bool = True) -> tuple[str, ...]:
    """The full names of what a file imports; those within functions too, if `deferred`."""
    return tuple(_imports(path, deferred))


def _imports(path: Path, deferred: bool) -> Iterator[str]:
    pending: list[ast.AST] = [tree_of(path)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            assert node.module is not None
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else node.module
        elif deferred or not _is_deferred(node):
            # Only statements import, and only these fields hold statements: expressions, which
            # are most of a tree, need no look.
            for field in ("body", "orelse", "finalbody", "handlers", "cases"):
                held = getattr(node, field, ())
                pending.extend(held if isinstance(held, list) else ())


def _is_deferred(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        name = getattr(node.test, "id", getattr(node.test, "attr", ""))  # bare, or of `typing`
        return bool(name == "TYPE_CHECKING")
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


HEIGHTS = {room: height for height, rooms in enumerate(ROOMS) for room in rooms}


def room_of(module: str) -> str:
    """The innermost room that a module is in."""
    name = module.removeprefix("aioqueue").lstrip(".")
    while name not in HEIGHTS:
        if not name:
            pytest.fail(f"{module} has no room: give it one in ROOMS")
        name = name.rpartition(".")[0]
        if not name:
            pytest.fail(f"{module} has no room: give it one in ROOMS")
    return name


def layer_of(module: str) -> int:
    return HEIGHTS[room_of(module)]


def outside(module: str) -> set[str]:
    """The top-level packages that a module imports, ours and ``__future__`` left out."""
    found = {name.split(".")[0] for name in imports(MODULES[module])}
    return found - {"aioqueue", "__future__"}


def against_the_layers(
    modules: Iterable[str], height: Callable[[str], int], among: Iterable[str] = MODULES
) -> list[str]:
    """The imports of some modules that point upwards, by a function that gives a module's layer."""
    known = set(among)
    return [
        f"{module} imports {imported}"
        for module in modules
        for imported in imports(MODULES[module])
        if imported in known and height(imported) > height(module)
    ]


@pytest.mark.slow(but="")  # not at all, though it reads every file: each run needs it
@pytest.mark.parametrize("is_compat", [True, False], ids=["compat", "all others"])
def test_folders_point_one_way(is_compat: bool) -> None:
    """In two parts, since most of the time goes into reading the files for the first time."""
    modules = [name for name in MODULES if (part(name) == "compat") == is_compat]
    assert not against_the_layers(modules, layer_of)
    missing = [
        f"{module} imports {imported}"
        for module in modules
        for imported in imports(MODULES[module])
        if imported.split(".")[0] == "aioqueue" and imported not in MODULES
    ]
    assert not missing, "no such module"


TELEMETRY_LAYERS = (
    ("metrics",),
    ("explain", "verdict"),
    ("views", "export"),
    ("monitor", "autotune", ""),
)
"""From the bottom to the top: folders of one layer do without each other; "" is the package."""


def test_folders_of_telemetry_point_one_way() -> None:
    def folder(module: str) -> str:
        return module.split(".")[2] if module.count(".") > 1 else ""

    def height(module: str) -> int:
        return next(i for i, names in enumerate(TELEMETRY_LAYERS) if folder(module) in names)

    modules = [name for name in MODULES if part(name) == "telemetry"]
    assert not [
        f"{module} imports {imported}"
        for module in modules
        for imported in imports(MODULES[module])
        if imported in modules
        and folder(imported) != folder(module)
        and "" not in (folder(imported), folder(module))
        and height(imported) >= height(module)
        and height(module) < len(TELEMETRY_LAYERS) - 1
    ]


def test_folders_of_one_height_do_without_each_other() -> None:
    """`errors` is a file that all rooms may name, and that needs what texts are."""
    found = [
        f"{module} imports {imported}"
        for module in MODULES
        for imported in imports(MODULES[module])
        if imported in MODULES
        and layer_of(imported) == layer_of(module)
        and room_of(imported) != room_of(module)
        and "aioqueue.errors" not in (module, imported)
    ]
    assert not found


def test_every_layer_is_there() -> None:
    assert {room_of(module) for module in MODULES} == set(HEIGHTS)


def test_attempts_know_nothing_of_the_machine() -> None:
    assert "aioqueue.core.machine" not in set(imports(MODULES["aioqueue.core.attempts"]))


def test_no_cycles() -> None:
    """What a module needs in order to be imported never needs that module."""
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path, module))
        if module in done:
            return
        for imported in imports(MODULES[module], deferred=False):
            # A package that re-exports a module which asks it for another one is no cycle.
            if imported in MODULES and not module.startswith(f"{imported}."):
                visit(imported, (*path, module))
        done.add(module)

    for module in MODULES:
        visit(module, ())
    assert done == set(MODULES)


def circles(modules: Iterable[str]) -> list[str]:
    """The files among `modules` that need each other, each with what it needs of its circle.

    Every import counts, also one that is for types only or that a function makes when it is
    called: it hides a circle from Python, not from who reads the code. A package's own file is a
    file like any other: that a module lies below it ties nothing, importing from it does.
    """
    needs = {
        module: {one for one in imports(MODULES[module]) if one in MODULES and one != module}
        for module in modules
    }
    reached = {module: _reached(module, needs) for module in needs}
    return [
        f"{module} -> {', '.join(sorted(one for one in found if module in reached.get(one, ())))}"
        for module, found in sorted(needs.items())
        if module in reached[module]
    ]


def _reached(module: str, needs: Mapping[str, set[str]]) -> set[str]:
    """What a file needs, and what that needs, and so on."""
    found: set[str] = set()
    pending = [module]
    while pending:
        new = needs.get(pending.pop(), set()) - found
        found |= new
        pending.extend(new)
    return found


def test_no_circle_of_files() -> None:
    assert not circles(MODULES)


def test_modules_of_ours_are_imported_by_statements() -> None:
    """What `import_module` imports is read nowhere else, so it is somebody else's, by its name."""
    for module in (one for one in MODULES if part(one) == "compat"):
        for node in ast.walk(tree_of(MODULES[module])):
            if isinstance(node, ast.Call) and _called(node) in ("import_module", "__import__"):
                asked = node.args[0]
                assert isinstance(asked, ast.Constant), f"{module}:{node.lineno}"
                assert str(asked.value).split(".")[0] != "aioqueue", f"{module}:{node.lineno}"


def _called(node: ast.Call) -> str:
    function = node.func
    return str(getattr(function, "attr", None) or getattr(function, "id", ""))


COMPAT = "aioqueue.compat.v1"
COMPAT_LAYERS = (
    ("absent", "protos"),
    ("core",),
    ("errors",),
    ("ops", "coordination", "logging", "flags", "summaries"),
    ("session",),
    ("queues",),
    ("readers", "parsing"),
    ("inputs", "datasets"),
    ("namespaces",),
    ("", "private", "shim", "checking", "__main__"),
)
"""The same within the compat layer: what runs a graph stands on what a graph is."""

COMPAT_MODULES = [name for name in MODULES if f"{name}.".startswith(f"{COMPAT}.")]


def compat_layer_of(module: str) -> int:
    room = module.removeprefix(COMPAT).lstrip(".").split(".")[0]
    places = {name: height for height, names in enumerate(COMPAT_LAYERS) for name in names}
    # A file beside the folders that has no layer of its own is one of TensorFlow's namespaces,
    # such as `tf.train`: it hands on what is made below.
    return places.get(room, places["namespaces"])


def test_imports_point_one_way_in_the_compat_layer() -> None:
    assert not against_the_layers(COMPAT_MODULES, compat_layer_of, COMPAT_MODULES)


def test_every_folder_of_the_compat_layer_has_a_place() -> None:
    folders = {path.name for path in MODULES[COMPAT].parent.iterdir() if path.is_dir()}
    named = {name for names in COMPAT_LAYERS for name in names}
    assert folders - {"__pycache__"} - named == {"contrib"}, "they are namespaces"


PURE = [name for name in MODULES if room_of(name).split(".")[0] == "core"]


def test_in_the_core_nothing_waits_or_reads_a_clock() -> None:
    """Not even by way of another module: only `errors` may name other libraries' exceptions, and
    `checks` the longest time that a thread can wait.
    """
    forbidden = {"anyio", "asyncio", "concurrent", "queue", "threading", "time", "trio", "uvloop"}
    used = {module: outside(module) & forbidden for module in PURE}
    assert not {module: names for module, names in used.items() if names}


def test_the_machine_needs_only_plain_python() -> None:
    assert outside("aioqueue.core.machine") <= {"collections", "types", "typing"}


def test_errors_know_nothing_of_us() -> None:
    ours = {name for name in imports(MODULES["aioqueue.errors"]) if name in MODULES}
    assert ours == {"aioqueue.base.display_text"}, "their messages tell no passwords"
    assert outside("aioqueue.base.display_text") == {"html", "logging", "re", "typing"}
    assert outside("aioqueue.errors") <= {
        "anyio",
        "asyncio",
        "collections",
        "concurrent",
        "contextvars",
        "pickle",
        "queue",
        "sys",
        "types",
        "typing",
    }


def part(module: str) -> str:
    """The part of the house that a module belongs to."""
    return module.split(".")[1] if "." in module else ""


PIPELINES = {
    "items",
    "fingerprints",
    "sources",
    "workers",
    "pipeline",
    "readers",
    "sinks",
    "preemption",
    "inputs",
}
"""The rooms behind the public names of `aioqueue.inputs`."""

OUTER = PIPELINES | {"compat", "prometheus", "torch", "asgi"}
SENDERS = {
    name
    for name in MODULES
    if name.startswith(("aioqueue.telemetry.export", "aioqueue.telemetry.views"))
    or name == "aioqueue.telemetry.monitor"
}
"""Ways to look at a run and to send its numbers, which need a library; no other module of the core
imports them, but when they are asked for."""

WINGS = {"torch"}
"""Those of them that are for one library, by whose name they go: it is there, or they are not."""

BESIDE = {"ray", "rl"}
"""Built on the machine itself, as the faces are, and for one library, too; and what has a machine
and faces of its own, whose callers wait and are woken as those of queues."""

CORE = [name for name in MODULES if part(name) not in OUTER | BESIDE and name not in SENDERS]


def test_anyio_and_asyncio_are_imported_only_where_they_have_a_place() -> None:
    users = {part(module) for module in CORE if "anyio" in outside(module)}
    assert users == {"errors", "worlds", "coordination", "batcher"}  # worlds: their scopes
    users = {part(module) for module in CORE if "asyncio" in outside(module)}
    assert users == {"errors", "worlds", "coordination", "batcher", "testing"}


def test_trio_is_imported_by_its_own_module_only() -> None:
    assert [name for name in MODULES if "trio" in outside(name)] == ["aioqueue.worlds.trio"]


def test_the_core_depends_on_numpy_and_anyio_alone() -> None:
    third_party: set[str] = set()
    for module in CORE:
        third_party |= outside(module) - sys.stdlib_module_names
    # trio: when a trio task waits; typing_extensions: for type checkers, which bring it along
    assert third_party == {"numpy", "anyio", "trio", "typing_extensions"}
    at_once = {name for module in CORE for name in imports(MODULES[module], deferred=False)}
    assert "typing_extensions" not in at_once


def test_extras_are_imported_when_used() -> None:
    found: dict[str, set[str]] = {}
    for module in set(MODULES) - set(CORE):
        at_once = {name.split(".")[0] for name in imports(MODULES[module], deferred=False)}
        own = {part(module)} & WINGS
        extras = at_once - sys.stdlib_module_names - {"aioqueue", "anyio", "numpy"} - own
        if extras:
            found[module] = extras
    assert not found


PUBLIC = {
    "aioqueue",
    "aioqueue.sync",
    "aioqueue.core.elements.philox",
    "aioqueue.inputs",
    "aioqueue.telemetry",
}
RULES = {
    "aioqueue.base.arguments",
    "aioqueue.errors",
    "aioqueue.core.elements.component",
    "aioqueue.coordination.cancellations",
    "aioqueue.coordination.tasks",
    "aioqueue.coordination.classify",
    "aioqueue.coordination.misuse",
    "aioqueue.base.display_text",
    "aioqueue.base.json_files",
    "aioqueue.base.extras",
    "aioqueue.base.hints",
    "aioqueue.system.forks",
    "aioqueue.base.global_generators",
    "aioqueue.system.locks",
    "aioqueue.core.meters",
    "aioqueue.core.elements.ownership",
    "aioqueue.system.posix",
    "aioqueue.system.processors",
    "aioqueue.base.public_names",
    "aioqueue.core.elements.trees",
    "aioqueue.core.storage.sized",
    "aioqueue.core.elements.structure",
    "aioqueue.core.elements.values",
    "aioqueue.telemetry.explain.explanation",
    "aioqueue.telemetry.export.numbering",
    "aioqueue.telemetry.export.shared_collector",
    "aioqueue.telemetry.explain.frame_cleanup",
    "aioqueue.telemetry.explain.lock_waits",
    "aioqueue.telemetry.explain.stacks",
    "aioqueue.base.tracebacks",
    "aioqueue.worlds.events",
    "aioqueue.worlds.waker",
    "aioqueue.items.item",
    "aioqueue.items.quarantine",
    "aioqueue.workers.retries",
    "aioqueue.workers.stage_metrics",
    "aioqueue.pipeline.nodes.metrics",
    "aioqueue.telemetry.metrics.counters",
}
"""Rules of the whole house, without state: what an argument and a value must be, who else has a
value, how large a thing is, how durations are counted, how a function is called and what it forgets
to await, what names of other libraries lead to, who draws from the program's generators, how a lock
is let go of, what an exception means, what a worker says of itself, what users read of a failure,
how a loop is reached, what a task waits for, how many processors there are, how extras are
installed, how exports are distinguished; how a skipped item is recorded and how many may be;
how a stage is measured; and the words in which a stage explains itself. What is built on the core
would else have to say them again."""
PROCESSES = {name for name in MODULES if name.startswith("aioqueue.processes.")}
"""Worker processes, which batchers and `prepare` both have."""


def test_what_is_built_on_the_core_uses_its_public_names_only() -> None:
    allowed = PUBLIC | RULES | PROCESSES
    found = [
        f"{module} imports {imported}"
        for module in MODULES
        if part(module) in OUTER
        for imported in imports(MODULES[module])
        if imported in MODULES
        and part(imported) != part(module)
        and not ({part(imported), part(module)} <= PIPELINES)
        and imported not in allowed
    ]
    assert not found


ASKS = {
    "cancelling",
    "uncancel",
    "_must_cancel",
    "cancel_called",
    "cancelled_caught",
    "current_effective_deadline",
    "get_cancelled_exc_class",
}
"""What tells whether a task was cancelled in all its life, or by what."""
OF_ITS_OWN_SCOPE = {
    ("aioqueue.asgi", "cancelled_caught"),
    ("aioqueue.worlds.asyncio", "cancelling"),
    ("aioqueue.worlds.asyncio", "uncancel"),
    ("aioqueue.worlds.asyncio", "_must_cancel"),
    ("aioqueue.worlds.asyncio", "current_effective_deadline"),
    ("aioqueue.batcher.workers", "cancelled_caught"),
    ("aioqueue.workers.executors.tasks", "cancel_called"),
    ("aioqueue.rl.hosts", "cancel_called"),
}
"""Who asks the timeout that it has itself entered just before; and the pause of a call, which
delivers at the next await what came since it began."""


@pytest.mark.slow
def test_one_module_asks_whether_a_task_was_cancelled() -> None:
    """It asks since a call began. A caller that asks the task itself finds what was left behind."""
    found = [
        f"{module}:{getattr(node, 'lineno', 0)} asks {name}"
        for module, path in MODULES.items()
        if module != "aioqueue.coordination.cancellations"
        for node in ast.walk(tree_of(path))
        for name in (_name_asked(node),)
        if name in ASKS and (module, name) not in OF_ITS_OWN_SCOPE
    ]
    assert not found


def _name_asked(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Name):
        return node.id
    is_getattr = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "getattr"
    if is_getattr and isinstance(node.args[1], ast.Constant):  # type: ignore[attr-defined]
        return str(node.args[1].value)  # type: ignore[attr-defined]
    return ""


def test_importing_brings_in_nothing_extra() -> None:
    program = """
import sys
import aioqueue
alone = sum(name.startswith("aioqueue") for name in sys.modules)
from aioqueue import *
extras = {"trio", "uvloop", "tqdm", "sklearn", "torch", "jax", "ray", "tensorflow", "pytest"}
extras |= {"IPython", "matplotlib", "opentelemetry", "prometheus_client", "rich", "tensorboardX"}
print(sorted(extras & set(sys.modules)), "numpy" in sys.modules, alone <= 4)
"""
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT.parent,
        timeout=50,
    )
    assert ran.stdout.strip() == "[] True True", ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize("share", range(3))
def test_every_module_can_be_the_first_one_imported(share: int) -> None:
    """No module works only because another one happened to come before it.

    Not even the package's own `__init__`, which else would come before each of them: it is left
    out for what it stands on. Of what stands on it, the packages: whichever of their modules is
    asked for, they come first.
    """
    has_trio = importlib.util.find_spec("trio") is not None
    below = [name for name in CORE if layer_of(name) <= layer_of("aioqueue.sync")]
    firsts = [name for name in below if has_trio or name != "aioqueue.worlds.trio"]
    assert "aioqueue" not in firsts
    program = """
import sys, importlib, types
path, *names = sys.argv[1:]
above = names[-2:]
for name in names:
    for loaded in [one for one in sys.modules if one.split(".")[0] == "aioqueue"]:
        del sys.modules[loaded]
    if name not in above:
        package = sys.modules["aioqueue"] = types.ModuleType("aioqueue")
        package.__path__ = [path]
    importlib.import_module(name)
print("done")
"""
    ran = subprocess.run(
        [
            sys.executable,
            *("-W", "error", "-c", program, str(ROOT)),
            *firsts[share::3],
            *("aioqueue.inputs", "aioqueue.compat.v1"),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT.parent,
        timeout=100,
    )
    assert ran.stdout.strip() == "done", ran.stderr
