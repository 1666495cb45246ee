"""A generator of programs that change in one place, and of those that change in none that counts.

A *kind* is a value of which there are two versions, and a *place* is where a program reaches it.
All pairs are programs of their own. To these come programs whose code changes in a place, programs
that change in a way that decides nothing, and programs that hold something that nobody can tell
apart.

`python -m tests.fingerprints.changes FOLDER VERSION` writes all programs of a version below a
folder, imports them, and prints what a cache compares of each: one process for all of them.
"""

from __future__ import annotations

import importlib
import json
import random
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

__all__ = ("Program", "changed", "harmless", "keys_of", "refused", "sampled")


class Program(NamedTuple):
    """A program: its name, and its files in both versions. The first file makes the pipeline."""

    name: str
    old: dict[str, str]
    new: dict[str, str]


HEAD: Final = """
import abc, array, asyncio, collections, contextlib, contextvars, dataclasses, datetime, decimal
import enum, fractions, functools, io, itertools, logging, math, operator, pathlib, random, re
import inspect, socket, sqlite3, struct, sys, typing, threading, time, types, uuid, weakref
import numpy as np
from aioqueue.inputs import *
from aioqueue.inputs import arrays, from_iterable, items, numbers
N = numbers(3, seed=0)
def closed(thing):
    thing.close()
    return thing
"""

LARGE: Final = "(lambda a: (a.__setitem__(500_000, VALUE), a)[1])(np.zeros(1_000_000, np.int64))"
SLOTS: Final = """
class Slots:
    __slots__ = ("size",)
    def __init__(self, size): self.size = size
"""
KINDS: Final[dict[str, tuple[str, str, str]]] = {
    # name: what comes before, and the value, in which VALUE is 1 and then 2
    "int": ("", "VALUE", ""),
    "large int": ("", "10**50 + VALUE", ""),
    "bool or int": ("", "[True, 1][VALUE - 1]", ""),
    "int or float": ("", "[1, 1.0][VALUE - 1]", ""),
    "zero": ("", "[0.0, -0.0][VALUE - 1]", ""),
    "float": ("", "VALUE / 3", ""),
    "complex": ("", "1j * VALUE", ""),
    "text": ("", "'a' * VALUE", ""),
    "long text": ("", "'a' * 100_000 + str(VALUE) + 'b' * 100_000", ""),
    "bytes": ("", "b'a' * VALUE", ""),
    "bytearray": ("", "bytearray(b'a' * VALUE)", ""),
    "list": ("", "[0] * 5000 + [VALUE] + [0] * 5000", ""),
    "nested list": ("", "[[0], [[VALUE]]]", ""),
    "list or tuple": ("", "[[1], (1,)][VALUE - 1]", ""),
    "tuple": ("", "(0, VALUE)", ""),
    "dict": ("", "{'a': 0, 'b': VALUE}", ""),
    "order of a dict": ("", "[{'a': 0, 'b': 1}, {'b': 1, 'a': 0}][VALUE - 1]", ""),
    "key of a dict": ("", "{VALUE: 0}", ""),
    "set": ("", "{'aa', 'bb', 'cc', str(VALUE)}", ""),
    "set of tuples": ("", "{('a', 'b'), ('c', str(VALUE))}", ""),
    "frozenset": ("", "frozenset({'aa', 'bb', str(VALUE)})", ""),
    "dict of sets": ("", "{'a': {'x', 'y', 'z', str(VALUE)}}", ""),
    "range": ("", "range(VALUE)", ""),
    "slice": ("", "slice(VALUE)", ""),
    "path": ("", "pathlib.Path('/data') / f'v{VALUE}'", ""),
    "pattern": ("", "re.compile('a' * VALUE)", ""),
    "flags of a pattern": ("", "re.compile('a', [0, re.I][VALUE - 1])", ""),
    "decimal": ("", "decimal.Decimal(VALUE) / 10", ""),
    "fraction": ("", "fractions.Fraction(VALUE, 3)", ""),
    "date": ("", "datetime.date(2020, 1, VALUE)", ""),
    "timedelta": ("", "datetime.timedelta(VALUE)", ""),
    "uuid": ("", "uuid.UUID(int=VALUE)", ""),
    "deque": ("", "collections.deque([0, VALUE])", ""),
    "counter": ("", "collections.Counter({'a': VALUE})", ""),
    "defaultdict": ("", "collections.defaultdict(int, a=VALUE)", ""),
    "ordered dict": ("", "collections.OrderedDict(a=VALUE)", ""),
    "named tuple": ("P = collections.namedtuple('P', 'x y')\n", "P(0, VALUE)", ""),
    "array of machine values": ("", "array.array('i', [VALUE])", ""),
    "memoryview": ("", "memoryview(b'a' * VALUE)", ""),
    "scalar": ("", "np.int64(VALUE)", ""),
    "dtype of a scalar": ("", "[np.int64(1), np.int32(1)][VALUE - 1]", ""),
    "dtype": ("", "np.dtype(['f4', 'i8'][VALUE - 1])", ""),
    "array": ("", "np.arange(3) + VALUE", ""),
    "middle of a large array": ("", LARGE, ""),
    "shape of an array": ("", "np.zeros([(2, 3), (3, 2)][VALUE - 1])", ""),
    "array by columns": ("", "np.asfortranarray(np.arange(6).reshape(2, 3) + VALUE)", ""),
    "part of an array": ("", "np.arange(12).reshape(3, 4)[:, VALUE]", ""),
    "array of objects": ("", "np.array(['a', str(VALUE)], object)", ""),
    "array of text": ("", "np.array(['a', str(VALUE)])", ""),
    "array of times": ("", "np.array([VALUE], 'M8[s]')", ""),
    "unit of times": ("", "np.array([1], ['M8[s]', 'M8[ms]'][VALUE - 1])", ""),
    "array of records": ("", "np.array([(1, VALUE)], [('a', 'i4'), ('b', 'f8')])", ""),
    "masked array": ("", "np.ma.masked_array([1, 2], [False, VALUE == 1])", ""),
    "slots": (SLOTS, "Slots(VALUE)", ".size"),
    "dataclass": ("@dataclasses.dataclass\nclass D:\n    size: int\n", "D(VALUE)", ".size"),
    "frozen dataclass with slots": (
        "@dataclasses.dataclass(frozen=True, slots=True)\nclass D:\n    size: int\n",
        "D(VALUE)",
        ".size",
    ),
    "namespace": ("", "types.SimpleNamespace(size=VALUE)", ".size"),
    "object": ("class O:\n    def __init__(s, n): s.size = n\n", "O(VALUE)", ".size"),
    "object that contains itself": (
        "class O:\n    def __init__(s, n): s.me = s; s.size = n\n",
        "O(VALUE)",
        ".size",
    ),
    "dict subclass": ("class O(dict): pass\n", "O(a=VALUE)", ""),
    "attribute of a dict subclass": (
        "class O(dict): pass\ndef made(n):\n    o = O(); o.size = n\n    return o\n",
        "made(VALUE)",
        ".size",
    ),
    "attribute of an array": (
        "class Sub(np.ndarray): pass\ndef made(n):\n    a = np.zeros(3).view(Sub); a.size1 = n\n"
        "    return a\n",
        "made(VALUE)",
        ".size1",
    ),
    "attribute of a date": (
        "class Sub(datetime.date): pass\ndef made(n):\n    a = Sub(2020, 1, 1); a.size = n\n"
        "    return a\n",
        "made(VALUE)",
        ".size",
    ),
    "enum": ("class E(enum.Enum):\n    A = 1\n    B = 2\n", "E(VALUE)", ".value"),
    "value of an enum": ("class E(enum.Enum):\n    A = VALUE\n", "E.A", ".value"),
    "function": ("", "(lambda x: x + VALUE)", "(0)"),
    "function with the value enclosed": ("", "(lambda v: lambda x: x + v)(VALUE)", "(0)"),
    "function of C": ("", "[math.floor, math.ceil][VALUE - 1]", "(0)"),
    "method of C": ("", "('a' * VALUE).join", "(['b', 'c'])"),
    "lookup": ("", "{0: VALUE}.get", "(0)"),
    "ufunc": ("", "[np.sqrt, np.square][VALUE - 1]", "(1.0)"),
    "partial": ("", "functools.partial(int.__add__, VALUE)", "(1)"),
    "getter": ("", "operator.itemgetter(VALUE)", "([0, 1, 2])"),
    "class": ("", "type('T', (), {'size': VALUE})", ".size"),
    "type": ("", "[int, float][VALUE - 1]", "(1)"),
    "bound method": (
        "class O:\n    def __init__(s, n): s.size = n\n    def f(s, x): return s.size\n",
        "O(VALUE).f",
        "(0)",
    ),
    "slot of a subclass of a fraction": (
        "class Sub(fractions.Fraction):\n    __slots__ = ('size',)\ndef made(n):\n"
        "    a = Sub(1, 2); a.size = n\n    return a\n",
        "made(VALUE)",
        ".size",
    ),
    "list that contains itself": ("", "(lambda a: (a.append(a), a)[1])([VALUE])", ""),
    "attribute of a partial": (
        "def made(n):\n    f = functools.partial(int); f.size = n\n    return f\n",
        "made(VALUE)",
        ".size",
    ),
    "attribute of a member of an enum": (
        "class E(enum.Enum):\n    A = 1\nE.A.size = VALUE\n",
        "E.A",
        ".size",
    ),
    "order of an enum": (
        "E = enum.Enum('E', [{'A': 1, 'B': 2}, {'B': 2, 'A': 1}][VALUE - 1])\n",
        "E",
        ".__members__",
    ),
    "struct": ("", "struct.Struct(['<i', '<I'][VALUE - 1])", ".pack(1)"),
    "type variable": ("", "typing.TypeVar('T', bound=[int, str][VALUE - 1])", ""),
    "module that was made": (
        "def made(n):\n    m = types.ModuleType('made'); m.k = n\n    return m\n",
        "made(VALUE)",
        ".k",
    ),
    "text in memory": ("", "io.StringIO('a' * VALUE)", ".getvalue()"),
    "chain": ("", "itertools.chain([VALUE])", ""),
}

USE: Final = "USE"
PLACES: Final[dict[str, str]] = {
    # KIND is the value, and USE what is done with it where it is reached
    "global": "K = KIND\ndef f(x): return KUSE\nP = N.prepare(f)",
    "global by name": "K = KIND\ndef f(x): return globals()['K']USE\nP = N.prepare(f)",
    "text that is evaluated": 'K = KIND\ndef f(x): return eval("""KUSE""")\nP = N.prepare(f)',
    "query of a frame": 'K = KIND\ndef f(x): return x.query("""@KUSE""")\nP = N.prepare(f)',
    "global of its own module": (
        "K = KIND\ndef f(x): return sys.modules[__name__].KUSE\nP = N.prepare(f)"
    ),
    "default": "def f(x, k=KIND): return kUSE\nP = N.prepare(f)",
    "keyword default": "def f(x, *, k=KIND): return kUSE\nP = N.prepare(f)",
    "enclosed": "def made(k):\n    def f(x): return kUSE\n    return f\nP = N.prepare(made(KIND))",
    "partial": "def g(x, k): return kUSE\nP = N.prepare(functools.partial(g, k=KIND))",
    "global partial": (
        "def h(x, k): return kUSE\ng = functools.partial(h, k=KIND)\n"
        "def f(x): return g(x)\nP = N.prepare(f)"
    ),
    "attribute": (
        "class C:\n    def __init__(s): s.k = KIND\n    def __call__(s, x): return s.kUSE\n"
        "P = N.prepare(C())"
    ),
    "attribute in a helper": (
        "class C:\n    def __init__(s): s.k = KIND\n    def __getitem__(s, x): return s.g(x)\n"
        "    def g(s, x): return s.kUSE\nP = N.prepare(C().__getitem__)"
    ),
    "attribute of an attribute": (
        "class A:\n    def __init__(s): s.k = KIND\nclass C:\n    def __init__(s): s.a = A()\n"
        "    def __call__(s, x): return s.a.kUSE\nP = N.prepare(C())"
    ),
    "attribute by name": (
        "class C:\n    def __init__(s): s.k = KIND\n"
        "    def __call__(s, x): return getattr(s, chr(107))USE\nP = N.prepare(C())"
    ),
    "class attribute": (
        "class C:\n    k = KIND\n    def __call__(s, x): return s.kUSE if x else 0\n"
        "P = N.prepare(C())"
    ),
    "class attribute of a base": (
        "class B:\n    k = KIND\nclass C(B):\n    def __call__(s, x): return C.kUSE if x else 0\n"
        "P = N.prepare(C())"
    ),
    "property": (
        "K = KIND\nclass C:\n    @property\n    def k(s): return KUSE\n"
        "    def __call__(s, x): return s.k\nP = N.prepare(C())"
    ),
    "cached property": (
        "K = KIND\nclass C:\n    @functools.cached_property\n    def k(s): return KUSE\n"
        "    def __call__(s, x): return s.k\nP = N.prepare(C())"
    ),
    "cached helper": (
        "K = KIND\n@functools.lru_cache\ndef g(): return KUSE\ndef f(x): return g()\n"
        "P = N.prepare(f)"
    ),
    "cached and wrapped helper": (
        "K = KIND\ndef deco(g):\n    @functools.wraps(g)\n    @functools.lru_cache\n"
        "    def w(): return g(), KUSE\n    return w\n@deco\ndef g(): return 1\n"
        "def f(x): return g()\nP = N.prepare(f)"
    ),
    "matched by position": (
        "class A:\n    __match_args__ = ('k',)\n    def __init__(s, k): s.k = k\nG = A(KIND)\n"
        "def f(x):\n    match G:\n        case A(v): return vUSE\nP = N.prepare(f)"
    ),
    "helper of a helper": (
        "K = KIND\ndef h(): return KUSE\ndef g(): return h()\ndef f(x): return g()\n"
        "P = N.prepare(f)"
    ),
    "wrapped": (
        "K = KIND\ndef deco(g):\n    @functools.wraps(g)\n    def inner(*a): return g(*a)\n"
        "    return inner\n@deco\ndef f(x): return KUSE\nP = N.prepare(f)"
    ),
    "context manager": (
        "K = KIND\n@contextlib.contextmanager\ndef g(): yield KUSE\n"
        "def f(x):\n    with g() as k: return k\nP = N.prepare(f)"
    ),
    "single dispatch": (
        "K = KIND\n@functools.singledispatch\ndef g(x): return 0\n"
        "@g.register\ndef _(x: int): return KUSE\nP = N.prepare(g)"
    ),
    "nested function": (
        "K = KIND\ndef f(x):\n    def g(): return KUSE\n    return g()\nP = N.prepare(f)"
    ),
    "attribute of a function": "def f(x): return f.kUSE\nf.k = KIND\nP = N.prepare(f)",
    "element of a list": "L = [0, [KIND]]\ndef f(x): return L[1][0]USE\nP = N.prepare(f)",
    "value of a dict": "L = {'a': {'b': KIND}}\ndef f(x): return L['a']['b']USE\nP = N.prepare(f)",
    "pickled": (
        "import pickle\nclass C:\n    def __init__(s): s.k = KIND\nG = C()\n"
        "def f(x): return pickle.dumps(G)\nP = N.prepare(f)"
    ),
    "template": (
        "class C:\n    def __init__(s): s.k = KIND\nG = C()\nT = '{0.k}'\n"
        "def f(x): return T.format(G)\nP = N.prepare(f)"
    ),
    "attribute of a class of another package": (
        "class M(abc.ABC, collections.abc.Sized):\n    k = KIND\n    def __len__(s): return 1\n"
        "def f(x): return M().kUSE\nP = N.prepare(f)"
    ),
    "hooked attribute": (
        "class C:\n    def __init__(s): s.k = KIND\n    def __getattr__(s, n): return 3\n"
        "    def __call__(s, x): return s.kUSE + s.other\nP = N.prepare(C())"
    ),
    "partial method": (
        "class C:\n    def g(s, k, x): return kUSE\n    f = functools.partialmethod(g, KIND)\n"
        "P = N.prepare(C().f)"
    ),
    "method of an object": (
        "class C:\n    pass\nc = C()\nc.f = (lambda k: lambda x: kUSE)(KIND)\n"
        "def f(x): return c.f(x)\nP = N.prepare(f)"
    ),
    "vectorized": (
        "K = KIND\nV = np.vectorize(lambda x: KUSE)\ndef f(x): return V(x)\nP = N.prepare(f)"
    ),
    "default of a dataclass": (
        "@dataclasses.dataclass\nclass D:\n"
        "    k: object = dataclasses.field(default_factory=lambda: KIND)\n"
        "def f(x): return D().kUSE\nP = N.prepare(f)"
    ),
    "default of a named tuple": (
        "import typing\nclass D(typing.NamedTuple):\n    k: object = KIND\n"
        "def f(x): return D().kUSE\nP = N.prepare(f)"
    ),
    "member of an enum": (
        "class E(enum.Enum):\n    A = (0, KIND)\n    def _g(s): return s.value[1]USE\n"
        "def f(x): return E.A._g()\nP = N.prepare(f)"
    ),
    "thread": (
        "class C(threading.Thread):\n    k = KIND\n    def run(s): s.r = s.kUSE\n"
        "def f(x):\n    c = C(); c.run(); return c.r\nP = N.prepare(f)"
    ),
    "global object": (
        "G = types.SimpleNamespace(k=KIND)\ndef f(x): return G.kUSE\nP = N.prepare(f)"
    ),
    "static method": (
        "K = KIND\nclass G:\n    @staticmethod\n    def g(): return KUSE\ndef f(x): return G.g()\n"
        "P = N.prepare(f)"
    ),
    "class method": (
        "class G:\n    k = KIND\n    @classmethod\n    def g(cls): return cls.kUSE\n"
        "def f(x): return G.g()\nP = N.prepare(f)"
    ),
    "coroutine": "K = KIND\nasync def f(x): return KUSE\nP = N.prepare(f)",
    "predicate": "K = KIND\ndef f(x): return bool(KUSE)\nP = N.filter(f)",
    "collate": "K = KIND\ndef f(x): return [KUSE]\nP = N.batch(2, collate=f)",
    "flat": "K = KIND\ndef f(x): return [KUSE]\nP = N.flat(f)",
    "branch": "K = KIND\ndef f(x): return KUSE\nP = N.mix(numbers(3, seed=1).prepare(f))",
    "behind a cache": "K = KIND\ndef f(x): return KUSE\nP = N.prepare(f).cache().prepare(str)",
    "cache in a branch": "K = KIND\ndef f(x): return KUSE\nP = N.concat(N.prepare(f).cache())",
    "another stage": (
        "class A:\n    def __init__(s): s.k = KIND\nA = A()\ndef f(x): return (x, A)\n"
        "def g(pair): return pair[1].kUSE\nP = N.prepare(f).prepare(g)"
    ),
    "item": "P = items([0, KIND], seed=0)",
    "item in a dict": "P = items([{'a': KIND}, {'a': 0}], seed=0)",
    "item with an attribute": (
        "class A:\n    def __init__(s): s.k = KIND\nP = items([A(), A()], seed=0).prepare(str)"
    ),
    "data set": (
        "class A:\n    def __init__(s): s.k = KIND\n    def __len__(s): return 3\n"
        "    def __getitem__(s, i): return s.kUSE\nP = items(A(), seed=0)"
    ),
    "iterable": ("K = KIND\ndef f():\n    yield KUSE\nP = from_iterable(f, seed=0, replay=True)"),
    "source": (
        "class Q(Source):\n    def __init__(s): super().__init__('q', 7); s._k = KIND\n"
        "    def entries(s): yield Entry(s._kUSE, 0, 0)\nP = Q().prepare(str)"
    ),
}
BESIDE: Final[dict[str, tuple[str, str]]] = {
    # the program, and the module beside it
    "module": ("import BESIDE\ndef f(x): return BESIDE.kUSE\nP = N.prepare(f)", "k = KIND"),
    "from a module": (
        "from BESIDE import k\ndef f(x): return kUSE\nP = N.prepare(f)",
        "k = KIND",
    ),
    "helper in a module": (
        "from BESIDE import g\ndef f(x): return g()\nP = N.prepare(f)",
        "k = KIND\ndef g(): return kUSE",
    ),
    "class in a module": (
        "import BESIDE\ndef f(x): return BESIDE.G().g()\nP = N.prepare(f)",
        "class G:\n    k = KIND\n    def g(s): return s.kUSE",
    ),
    "base in a module": (
        "from BESIDE import B\nclass C(B):\n    def __call__(s, x): return s.g()\n"
        "P = N.prepare(C())",
        "class B:\n    k = KIND\n    def g(s): return s.kUSE",
    ),
    "import in a function": (
        "def f(x):\n    import BESIDE\n    return BESIDE.kUSE\nP = N.prepare(f)",
        "k = KIND",
    ),
    "from in a function": (
        "def f(x):\n    from BESIDE import g\n    return g()\nP = N.prepare(f)",
        "k = KIND\ndef g(): return kUSE",
    ),
    "module as a value": (
        "import BESIDE\nclass C:\n    def __init__(s): s.m = BESIDE\n"
        "    def __call__(s, x): return s.m.kUSE\nP = N.prepare(C())",
        "k = KIND",
    ),
    "module by name": (
        "import BESIDE\ndef f(x): return getattr(BESIDE, chr(107))USE\nP = N.prepare(f)",
        "k = KIND",
    ),
}

CODE: Final[dict[str, str]] = {
    # VALUE is 1 and then 2 in the code itself
    "function": "def f(x): return x + VALUE\nP = N.prepare(f)",
    "lambda": "P = N.prepare(lambda x: x + VALUE)",
    "lambda of text": "P = N.prepare(lambda x: 'catVALUE')",
    "comprehension": "def f(x): return ['catVALUE' for _ in range(2)]\nP = N.prepare(f)",
    "generator expression": "def f(x): return '-'.join('catVALUE' for _ in 'ab')\nP = N.prepare(f)",
    "set in the code": "def f(x): return str(x) in {'a', 'b', 'VALUE'}\nP = N.prepare(f)",
    "text of a function that is read": (
        "def f(x):\n    'VALUE'\n    return f.__doc__\nP = N.prepare(f)"
    ),
    "names of parameters": (
        "def g(n, a, b): return n * [a, b][VALUE - 1]\ndef f(x): return g(x, a=2, b=5)\n"
        "P = N.prepare(f)"
    ),
    "order of parameters": (
        "def g(n, [a, b][VALUE - 1], [b, a][VALUE - 1]): return n * a + b\n"
        "def f(x): return g(x, a=2, b=5)\nP = N.prepare(f)"
    ),
    "rng": "def f(x, [rng, gen][VALUE - 1]=None): return 0\nP = N.prepare(f)",
    "method through self": (
        "class C:\n    def __getitem__(s, x): return s.g(x)\n    def g(s, x): return x + VALUE\n"
        "P = N.prepare(C().__getitem__)"
    ),
    "method of a base": (
        "class B:\n    def g(s, x): return x + VALUE\nclass C(B):\n"
        "    def __call__(s, x): return s.g(x)\nP = N.prepare(C())"
    ),
    "property": (
        "class C:\n    @property\n    def k(s): return VALUE\n    def __call__(s, x): return s.k\n"
        "P = N.prepare(C())"
    ),
    "operator": (
        "class V:\n    def __add__(s, x): return x + VALUE\ndef f(x): return V() + x\n"
        "P = N.prepare(f)"
    ),
    "attribute hook": (
        "class C:\n    def __getattr__(s, n): return VALUE\n    def __call__(s, x): return s.k\n"
        "P = N.prepare(C())"
    ),
    "descriptor": (
        "class K:\n    def __get__(s, *a): return VALUE\nclass C:\n    k = K()\n"
        "    def __call__(s, x): return s.k\nP = N.prepare(C())"
    ),
    "metaclass": (
        "class M(type):\n    def __call__(c): return VALUE\nclass C(metaclass=M): pass\n"
        "def f(x): return C()\nP = N.prepare(f)"
    ),
    "class as a function": (
        "class C:\n    def __init__(s, x): s.v = x + VALUE\nP = N.prepare(C).prepare(lambda c: c.v)"
    ),
    "decorator": (
        "def deco(g):\n    def inner(x): return g(x) + VALUE\n    return inner\n"
        "@deco\ndef f(x): return x\nP = N.prepare(f)"
    ),
    "function in a dict": (
        "def g(x): return x + VALUE\nT = {'a': g}\ndef f(x): return T['a'](x)\nP = N.prepare(f)"
    ),
    "which function": (
        "def g(x): return x\ndef h(x): return -x\nT = [g, h][VALUE - 1]\n"
        "def f(x): return T(x)\nP = N.prepare(f)"
    ),
    "functions that call each other": (
        "def g(x): return h(x - 1) if x else VALUE\ndef h(x): return g(x - 1) if x else 0\n"
        "def f(x): return g(x)\nP = N.prepare(f)"
    ),
    "which attribute of a package": (
        "def f(x): return math.[floor, ceil][VALUE - 1](x)\nP = N.prepare(f)"
    ),
    "name of a global": (
        "def g(x): return x\ndef h(x): return -x\ndef f(x): return [g, h][VALUE - 1](x)\n"
        "P = N.prepare(f)"
    ),
    "name of an argument": "def f(x): return dict([a, b][VALUE - 1]=x)\nP = N.prepare(f)",
    "name of a variable that is read": (
        "def f(x):\n    [a, b][VALUE - 1] = x\n    return sorted(locals())\nP = N.prepare(f)"
    ),
    "annotation of a class that is read": (
        "class C:\n    x: [g, h][VALUE - 1] = 1\ndef g(): pass\ndef h(): pass\n"
        "def f(x): return str(typing.get_type_hints(C))\nP = N.prepare(f)"
    ).replace("[g, h][VALUE - 1]", "'[g, h][VALUE - 1]'"),
    "annotation that is read": (
        "def g(a: 'kVALUE'): pass\ndef f(x): return str(inspect.signature(g))\nP = N.prepare(f)"
    ),
    "annotation of an inner function that is read": (
        "def f(x):\n    def g(a: 'kVALUE'): pass\n    return str(g.__annotations__)\n"
        "P = N.prepare(f)"
    ),
    "virtual subclass": (
        "class A(abc.ABC): pass\nA.register([int, str][VALUE - 1])\n"
        "def f(x): return isinstance(int(x), A)\nP = N.prepare(f)"
    ),
    "reduction": (
        "class C:\n    def __init__(s): s.lock = threading.Lock(); s.k = 1\n"
        "    def __getstate__(s): return {'k': s.k}\n    def __call__(s, x): return s.k + VALUE\n"
        "P = N.prepare(C())"
    ),
}
MORE: Final[dict[str, tuple[str, str]]] = {
    "from try to else": (
        "def f(x):\n    try:\n        y = 5 // x\n        z = [1][y]\n"
        "    except Exception:\n        return -1\n    return z\nP = N.prepare(f)",
        "def f(x):\n    try:\n        y = 5 // x\n"
        "    except Exception:\n        return -1\n    else:\n        z = [1][y]\n    return z\n"
        "P = N.prepare(f)",
    ),
    "two functions of one name": (
        "def made(k):\n    def f(x): return x + k\n    return f\na, b = made(1), made(2)\n"
        "def f(x): return a(x) - 2 * b(x)\nP = N.prepare(f)",
        "def made(k):\n    def f(x): return x + k\n    return f\na, b = made(2), made(1)\n"
        "def f(x): return a(x) - 2 * b(x)\nP = N.prepare(f)",
    ),
    "key of a nested cache": (
        "def f(x): return x + 1\nP = N.prepare(f).cache(key='1').prepare(str)",
        "def f(x): return x + 5\nP = N.prepare(f).cache(key='2').prepare(str)",
    ),
    "tokens": (
        "P = items([[1], [2, 2]] * 4, seed=7).mix(items([[3]] * 8, seed=1), tokens=len)",
        "P = items([[1], [2, 2]] * 4, seed=7).mix(items([[3]] * 8, seed=1), tokens=lambda x: 1)",
    ),
    "length": (
        "P = items([[1], [2, 2]] * 4, seed=7).bucket([2], 2, length=len)",
        "P = items([[1], [2, 2]] * 4, seed=7).bucket([2], 2, length=lambda x: 1)",
    ),
    "text of a namespace": (
        "import argparse\nA = argparse.Namespace(k=1)\ndef f(x): return str(A)\nP = N.prepare(f)",
        "import argparse\nA = argparse.Namespace(k=2)\ndef f(x): return str(A)\nP = N.prepare(f)",
    ),
    "arrays": (
        "P = arrays({'x': np.zeros((4, 3))}, seed=7)",
        "P = arrays({'x': np.ones((4, 3))}, seed=7)",
    ),
}

UNREAD: Final = (
    "uuid.uuid4()",
    "time.time_ns()",
    "np.random.default_rng()",
    "random.Random()",
    "object()",
    "threading.Lock()",
    "logging.getLogger('x')",
    "closed(socket.socket())",
)
HARMLESS: Final[dict[str, tuple[str, str]]] = {
    "lines of a statement": (
        "def f(x):\n    try: return 1 // x\n    except ZeroDivisionError: return 0\n"
        "P = N.prepare(f)",
        "def f(x):\n    try:\n        return 1 // x\n\n    except ZeroDivisionError:\n"
        "        return 0\nP = N.prepare(f)",
    ),
    "text that documents an inner class": (
        "def f(x):\n    class G:\n        'one'\n        k = x\n    return G.k\nP = N.prepare(f)",
        "def f(x):\n    class G:\n        'two'\n        k = x\n    return G.k\nP = N.prepare(f)",
    ),
    "text that documents a data set": (
        "class A:\n    'one'\n    def __len__(s): return 3\n"
        "    def __getitem__(s, i):\n        'one'\n        return i\nP = items(A(), seed=0)",
        "class A:\n    'two'\n    def __len__(s): return 3\n"
        "    def __getitem__(s, i):\n        'two'\n        return i\nP = items(A(), seed=0)",
    ),
    "annotations of an inner function": (
        "def f(x):\n    def g(y, z=1, *, q=2): return x + y\n    return g(x)\nP = N.prepare(f)",
        "def f(x):\n    def g(y: dict[str, int], z: 'int' = 1, *, q=2) -> int: return x + y\n"
        "    return g(x)\nP = N.prepare(f)",
    ),
    "name and file of a module": (
        "def f(x): return logging.getLogger(__name__), __file__\nP = N.prepare(f)",
        "__name__ = 'x.' + __name__; __file__ = '/x/' + __file__\n"
        "def f(x): return logging.getLogger(__name__), __file__\nP = N.prepare(f)",
    ),
    "model that is set to evaluation": (
        "class C:\n    def __init__(s): s.run = uuid.uuid4(); s.k = 1\n"
        "    def __call__(s, x): return x.eval() + s.k\nP = N.prepare(C())",
    )
    * 2,
    "type variable": ("T = typing.TypeVar('T')\ndef f(x): return str(T)\nP = N.prepare(f)",) * 2,
    "comments and lines": (
        "def f(x): return x + 1\nP = N.prepare(f)",
        "\n\n# more\ndef f(\n    x,\n):\n    # it adds\n    return x + 1\nP = N.prepare(f)",
    ),
    "text that documents": (
        "def f(x):\n    'one'\n    return x + 1\nP = N.prepare(f)",
        "def f(x):\n    'two'\n    return x + 1\nP = N.prepare(f)",
    ),
    "annotations": (
        "def f(x): return x + 1\nP = N.prepare(f)",
        "def f(x: int) -> int: return x + 1\nP = N.prepare(f)",
    ),
    "local names": (
        "def f(x):\n    a = x + 1\n    return a\nP = N.prepare(f)",
        "def f(x):\n    b = x + 1\n    return b\nP = N.prepare(f)",
    ),
    "workers": (
        "def f(x): return x + 1\nP = N.prepare(f, workers=1)",
        "def f(x): return x + 1\nP = N.prepare(f, workers=3, where='thread', max_in_flight=9)",
    ),
    "another function": (
        "def f(x): return x + 1\nP = N.prepare(f)",
        "def g(x): return x + 7\nK = 3\ndef f(x): return x + 1\nP = N.prepare(f)",
    ),
    "cached calls": (
        "@functools.lru_cache\ndef g(x): return x\ndef f(x): return g(x)\nP = N.prepare(f)",
        "@functools.lru_cache\ndef g(x): return x\ndef f(x): return g(x)\ng(1); P = N.prepare(f)",
    ),
    "level of a logger": (
        "L = logging.getLogger('a')\ndef f(x): L.debug('x'); return x\nP = N.prepare(f)",
        "L = logging.getLogger('a'); L.addFilter(lambda r: True)\n"
        "def f(x): L.debug('x'); return x\nP = N.prepare(f)",
    ),
    "event": (
        "E = threading.Event()\ndef f(x): return x if E.is_set() else x\nP = N.prepare(f)",
        "E = threading.Event(); E.set()\ndef f(x): return x if E.is_set() else x\nP = N.prepare(f)",
    ),
    "context variable": (
        "V = contextvars.ContextVar('v')\ndef f(x): return V.get(x)\nP = N.prepare(f)",
        "V = contextvars.ContextVar('v'); V.set(1)\ndef f(x): return V.get(x)\nP = N.prepare(f)",
    ),
    "local data of threads": (
        "T = threading.local()\ndef f(x): return getattr(T, 'x', x)\nP = N.prepare(f)",
        "T = threading.local(); T.x = 1\ndef f(x): return getattr(T, 'x', x)\nP = N.prepare(f)",
    ),
    "weak references": (
        "class C: pass\nC0 = C(); W = weakref.ref(C0)\ndef f(x): return x if W() else x\n"
        "P = N.prepare(f)",
        "class C: pass\nW = weakref.ref(C())\ndef f(x): return x if W() else x\nP = N.prepare(f)",
    ),
    "one object twice": (
        "a = [1]\nL = [a, a]\ndef f(x): return L[0][0]\nP = N.prepare(f)",
        "L = [[1], [1]]\ndef f(x): return L[0][0]\nP = N.prepare(f)",
    ),
    "stream": (
        "S = sys.stderr\ndef f(x): print(x, file=S); return x\nP = N.prepare(f)",
        "S = sys.stderr\ndef f(x): print(x, file=S); return x\nP = N.prepare(f)  # the same",
    ),
    "global generators": (
        "from random import random as draw\ndef f(x): return draw() + np.random.rand()\n"
        "P = N.prepare(f)",
        "from random import random as draw\ndraw()\ndef f(x): return draw() + np.random.rand()\n"
        "P = N.prepare(f)",
    ),
    "environment": (
        "from os import environ\ndef f(x): return environ.get('A', x)\nP = N.prepare(f)",
        "from os import environ\nenviron['A1'] = 'x'\ndef f(x): return environ.get('A', x)\n"
        "P = N.prepare(f)",
    ),
    **{
        f"attribute that nobody reads: {one}": (
            f"class C:\n    def __init__(s): s.run = {one}; s.k = 1\n"
            "    def __call__(s, x): return x + s.k\nP = N.prepare(C())",
        )
        * 2
        for one in UNREAD
    },
}

REFUSED: Final[dict[str, tuple[str, str]]] = {
    # what cannot be told apart, and what the message says
    "closed(socket.socket())": ("socket", "key='1'"),
    "(x for x in range(3))": ("generator", "as a list"),
    "open(1, 'w', closefd=False)": ("TextIOWrapper", "open for reading"),
    "np.random.default_rng()": ("Generator", "`rng`"),
    "np.random.RandomState(0)": ("RandomState", "`rng`"),
    "random.Random(0)": ("Random", "`rng`"),
    "closed(sqlite3.connect(':memory:'))": ("Connection", "key='1'"),
    "sys._getframe()": ("frame", "key='1'"),
}
WHERE: Final = (
    "global",
    "default",
    "enclosed",
    "attribute",
    "attribute by name",
    "element of a list",
)


def _versions(text: str) -> tuple[str, str]:
    """Both versions of a text: of VALUE, and of lists of two names in the place of a name."""
    found = []
    for value in (1, 2):
        one = text
        for pair in ("[a, b]", "[b, a]", "[rng, gen]", "[floor, ceil]", "[g, h]"):
            names = pair.strip("[]").split(", ")
            one = one.replace(f"{pair}[VALUE - 1]", names[value - 1])
        found.append(one.replace("VALUE", str(value)))
    return found[0], found[1]


def changed() -> Iterator[Program]:
    """All programs that make other examples in their second version, or may do so."""
    for kind, (before, value, use) in KINDS.items():
        for place, text in PLACES.items():
            body = text.replace("KIND", value).replace(USE, use)
            yield _program(f"{kind}: {place}", before + body)
        for place, (text, beside) in BESIDE.items():
            module = (before + beside).replace("KIND", value).replace(USE, use)
            yield _program(f"{kind}: {place}", text.replace(USE, use), module)
    for place, text in CODE.items():
        yield _program(f"code: {place}", text)
    for place, (old, new) in MORE.items():
        yield Program(f"code: {place}", {"main": old}, {"main": new})


def _program(name: str, text: str, beside: str | None = None) -> Program:
    is_relative = "[VALUE - 1]" in text and name.startswith("code")
    old, new = _versions(text) if is_relative else (text.replace("VALUE", one) for one in "12")
    if beside is None:
        return Program(name, {"main": old}, {"main": new})
    return Program(
        name,
        {"main": old, "beside": beside.replace("VALUE", "1")},
        {"main": new, "beside": beside.replace("VALUE", "2")},
    )


def harmless() -> Iterator[Program]:
    """Programs that make the same examples in both versions."""
    for name, (old, new) in HARMLESS.items():
        yield Program(f"harmless: {name}", {"main": old}, {"main": new})


def refused() -> Iterator[tuple[Program, str, str]]:
    """Programs that hold what cannot be distinguished, with two things that the message says."""
    for value, (what, cure) in REFUSED.items():
        for place in WHERE:
            text = PLACES[place].replace("KIND", value).replace(USE, "")
            yield Program(f"{value}: {place}", {"main": text}, {"main": text}), what, cure


def sampled(count: int, seed: int) -> list[Program]:
    """Some of the programs that change."""
    return random.Random(seed).sample(list(changed()), count)


def keys_of(programs: list[Program], folder: Path, version: str) -> dict[str, Any]:
    """What a cache compares of each program, or the message of the error that it raises.

    Args:
        programs: the programs.
        folder: where their files go.
        version: ``"old"`` or ``"new"``.
    """
    from aioqueue.inputs import Pipeline
    from aioqueue.pipeline.fingerprint import code_of, options_of
    from aioqueue.pipeline.state.checkpoint import fingerprint_of

    found: dict[str, Any] = {}
    sys.path.insert(0, str(folder))
    was, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        for number, program in enumerate(programs):
            names = {one: f"{one}{number}" for one in ("main", "beside")}
            for one, text in getattr(program, version).items():
                text = textwrap.dedent(text).replace("BESIDE", names["beside"])
                (folder / f"{names[one]}.py").write_text(HEAD + text + "\n")
        importlib.invalidate_caches()
        for number, program in enumerate(programs):
            made = importlib.import_module(f"main{number}").P
            pipeline = made if isinstance(made, Pipeline) else Pipeline(made)
            key: list[Any]
            try:
                key = [
                    code_of(pipeline),
                    options_of(pipeline, is_cache=True),
                    fingerprint_of(pipeline),
                ]
            except ValueError as error:
                key = [str(error)]
            found[program.name] = json.loads(json.dumps(key))
    finally:
        sys.path.remove(str(folder))
        sys.dont_write_bytecode = was
        for number in range(len(programs)):
            for one in ("main", "beside"):
                sys.modules.pop(f"{one}{number}", None)
    return found


def main() -> None:
    """Print what is compared of all programs of a version."""
    programs = [*changed(), *harmless(), *(one for one, _, _ in refused())]
    keys = keys_of(programs, Path(sys.argv[1]), sys.argv[2])
    print(json.dumps(keys))


if __name__ == "__main__":
    main()
