"""Programs of one queue or two, single-threaded and with runs that block in the background."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from proofs.oracle.program import Maker

__all__ = ("QUEUES",)

DTYPES = ("int32", "int64", "float32", "float64", "string", "bool", "uint8", "int32", "string")
SHAPES: tuple[tuple[int, ...], ...] = ((), (), (), (2,), (2, 3), (1, 1, 2))
# In a batch, rows of no numbers crash TensorFlow: see `kinder`. Rows of no strings do not.
EMPTY: tuple[tuple[int, ...], ...] = ((0,), (2, 0))


@dataclass
class Component:
    """What one slot of an element holds."""

    dtype: str
    shape: tuple[int | None, ...] | None  # None: any


@dataclass
class Writer:
    """A program that is being written, and what is known of its queue.

    Attributes:
        draw: where all choices come from.
        kind: of the queue.
        blocks: whether runs may block in the background.
        lines: what is written so far.
        components: of the queue; names, capacity, min_after as well.
        size: how many elements it should have, where nothing blocks; and whether it is closed.
        counter: so that each number that goes in is another.
        timed: whether all runs of the session have a timeout.
        flow: how much more goes in than comes out.
        cut: of which sides of the queue a run has been cut short while others wait.
    """

    draw: random.Random
    kind: str
    blocks: bool
    lines: list[str] = field(default_factory=list)
    components: list[Component] = field(default_factory=list)
    names: list[str] | None = None
    capacity: int = 3
    min_after: int = 0
    size: int = 0
    closed: bool = False
    counter: int = 0
    timed: bool = False
    flow: float = 1
    cut: set[str] = field(default_factory=set)

    def chance(self, probability: float) -> bool:
        return self.draw.random() < probability

    # Values, spelled as Python.

    def value(self, component: Component, shape: tuple[int, ...], number: int) -> str:
        """A value of a shape, in which each number is another."""
        count = 1
        for length in shape:
            count *= length
        items = [self.item(component.dtype, number + at) for at in range(count)]
        if not shape:
            return items[0]
        if component.dtype == "string":
            return f"np.array([{', '.join(items)}], object).reshape({shape})"
        return f"np.array([{', '.join(items)}], {component.dtype!r}).reshape({shape})"

    @staticmethod
    def item(dtype: str, number: int) -> str:
        if dtype == "string":
            return f"b's{number}'"
        if dtype == "bool":
            return str(number % 3 == 0)
        if dtype.startswith("float"):
            return f"{number}.5"
        if dtype == "uint8":
            return str(number % 256)
        return str(number if dtype == "int64" else number % 2**20)

    def shape_of(
        self, component: Component, *, wrong: bool = False, many: bool = False
    ) -> tuple[int, ...]:
        """A shape that fits a component, or one that does not."""
        if component.shape is None:
            return self.draw.choice(self.shapes_of(component.dtype))
        least = 1 if many and component.dtype != "string" else 0
        shape = tuple(self.draw.randint(least, 3) if n is None else n for n in component.shape)
        if wrong:
            return self.draw.choice([(*shape, 2), (*shape[:-1], 5), (7, *shape)])
        return shape

    @staticmethod
    def shapes_of(dtype: str) -> tuple[tuple[int, ...], ...]:
        return SHAPES + EMPTY if dtype == "string" else SHAPES

    def element(self, *, wrong: bool = False) -> list[str]:
        """The values of one element."""
        self.counter += 10
        number = self.counter
        if self.kind == "PriorityQueue":
            # Elements of the same priority are the same: their order is not promised.
            number = self.draw.choice((-(2**40), -30, 0, 10, 20, 30, 40, 2**40))
        bad = self.draw.randrange(len(self.components)) if wrong else -1
        return [
            self.value(part, self.shape_of(part, wrong=at == bad), number)
            for at, part in enumerate(self.components)
        ]

    def batch(self, rows: int, *, wrong: bool = False) -> list[str]:
        """The values of a batch."""
        bad = self.draw.randrange(len(self.components)) if wrong else -1
        numbers = []
        for _ in range(rows):
            self.counter += 10
            numbers.append(self.counter)
        if self.kind == "PriorityQueue":
            numbers = [self.draw.choice((-30, 0, 10, 20, 30)) for _ in range(rows)]
        made = []
        for at, part in enumerate(self.components):
            shape = self.shape_of(part, wrong=at == bad and self.chance(0.5), many=True)
            count = rows + (at == bad)
            values = [self.value(part, shape, number) for number in numbers]
            if count > rows:
                values.append(self.value(part, shape, 1))
            if not count:
                kind = "object" if part.dtype == "string" else repr(part.dtype)
                made.append(f"np.zeros({(0, *shape)}, {kind})")
            elif part.dtype == "string":
                spelled = ", ".join(values)
                made.append(f"np.array([{spelled}], object).reshape({(count, *shape)})")
            else:
                made.append(f"np.array([{', '.join(values)}], {part.dtype!r})")
        return made

    # Lines.

    def declare(self) -> None:
        """Write the queue and the ops that are run later."""
        draw = self.draw
        # More comes in than goes out, or the other way round.
        self.flow = draw.choice((0.4, 1, 2.5)) if self.blocks else 1
        self.capacity = draw.choice((1, 2, 3, 3, 4, 5, 8, 8, 0 if self.chance(0.3) else 6, -1))
        count = draw.choice((1, 1, 1, 2, 2, 3))
        shaped = self.kind in ("PaddingFIFOQueue", "PriorityQueue") or self.chance(0.8)
        for _ in range(count):
            dtype = draw.choice(DTYPES)
            shape: tuple[int | None, ...] | None = None
            if shaped:
                shape = draw.choice(self.shapes_of(dtype))
            if self.kind == "PaddingFIFOQueue" and shape is not None:
                shape = tuple(None if self.chance(0.6) else n for n in shape)
            self.components.append(Component(dtype, shape))
        if self.kind == "PaddingFIFOQueue" and count == 1 and self.components[0].shape == ():
            self.components[0].shape = (None,)
        arguments = [str(self.capacity)]
        if self.kind == "RandomShuffleQueue":
            top = max(self.capacity, 0) if self.capacity >= 0 else 4
            self.min_after = draw.randint(0, max(0, top - 1))
            if self.chance(0.05):
                self.min_after = draw.choice((-1, top, top + 1))
            arguments.append(str(self.min_after))
        arguments.append("[" + ", ".join(f"tf.{part.dtype}" for part in self.components) + "]")
        if shaped:
            shapes = [list(part.shape or ()) for part in self.components]
            arguments.append(f"shapes={shapes}")
        if self.kind == "PriorityQueue":
            self.components.insert(0, Component("int64", ()))
        if self.chance(0.25):
            self.names = [f"n{at}" for at in range(len(self.components))]
            arguments.append(f"names={self.names}")
        if self.kind == "RandomShuffleQueue":
            self.seeds(arguments)
        if self.chance(0.15):
            arguments.append(f"shared_name={draw.choice(('shared', 'q'))!r}")
        if self.chance(0.3):
            arguments.append(f"name={draw.choice(('q', 'a_queue', 'input'))!r}")
        self.lines.append(f"q = tf.{self.kind}({', '.join(arguments)})")
        self.declare_ops()

    def seeds(self, arguments: list[str]) -> None:
        graph, own = self.chance(0.3), self.chance(0.8)
        if graph or not own:
            self.lines.append(f"tf.set_random_seed({self.draw.randint(0, 99)})")
        if own:
            seed = self.draw.choice((0, 1, 7, self.draw.randrange(2**31), 2**31 - 1, -5))
            arguments.append(f"seed={seed}")

    def declare_ops(self) -> None:
        feeds, many_feeds = [], []
        for at, part in enumerate(self.components):
            # Unknown static shapes, so that wrong ones can be fed.
            self.lines.append(f"x{at} = tf.placeholder(tf.{part.dtype})")
            self.lines.append(f"xs{at} = tf.placeholder(tf.{part.dtype})")
            feeds.append(f"x{at}")
            many_feeds.append(f"xs{at}")
        self.lines += [
            f"put = q.enqueue({self.vals(feeds)})",
            f"puts = q.enqueue_many({self.vals(many_feeds)})",
            "take = q.dequeue()",
            "n = tf.placeholder(tf.int32)",
            "batch = q.dequeue_many(n)",
            "upto = q.dequeue_up_to(n)",
            "close = q.close()",
            "cancel = q.close(cancel_pending_enqueues=True)",
            "size = q.size()",
            "closed = q.is_closed()",
        ]
        if len(self.components) > 1 and not self.names and self.chance(0.2):
            self.lines.append(f"puts2 = q.enqueue([{self.element()[0]}])")  # the others are missing
        for at in range(self.draw.choice((0, 0, 1, 2))):
            if self.chance(0.5):
                self.lines.append(f"put{at} = q.enqueue({self.vals(self.element())})")
            else:
                rows = self.draw.randint(1, 3)
                self.lines.append(f"puts{at} = q.enqueue_many({self.vals(self.batch(rows))})")
        if self.chance(0.3):
            self.lines.append(f"three = q.dequeue_many({self.draw.randint(0, 4)})")
        # A session whose runs all have a timeout takes no other.
        self.timed = not self.blocks and self.chance(0.15)
        self.lines.append("session(timeout=40)" if self.timed else "session()")

    def vals(self, values: list[str]) -> str:
        if self.names:
            return "{" + ", ".join(map("{!r}: {}".format, self.names, values)) + "}"
        if len(values) == 1 and self.chance(0.5) and not values[0].startswith("["):
            return values[0]
        return f"[{', '.join(values)}]"

    def run(self, fetch: str, feed: str = "", *, timeout: int | None = None) -> None:
        how = "go" if self.blocks else "here"
        arguments = [fetch]
        if feed:
            arguments.append(feed)
        if timeout is not None and not self.timed:
            arguments.append(f"timeout={timeout}")
        self.lines.append(f"{how}({', '.join(arguments)})")

    def room(self) -> int:
        return 10**6 if self.capacity < 0 else self.capacity - self.size

    def ready(self) -> int:
        return self.size if self.closed else max(0, self.size - self.min_after)

    # Actions.

    def act(self) -> bool:
        """Write one more run; False if what comes after it is not comparable."""
        actions = {
            "put": 10 * self.flow, "puts": 7 * self.flow, "take": 10, "batch": 7, "upto": 5,
            "close": 2 if self.blocks else 1.2, "cancel": 1 if self.blocks else 0.6,
            "both": 1 if self.kind in ("FIFOQueue", "PaddingFIFOQueue") else 0, "size": 4,
            "closed": 2, "declared": 2, "timeout": 0.5 if self.blocks else 0,
            "late_close": 0.3 if self.blocks else 0,
        }  # fmt: skip
        name = self.draw.choices(list(actions), list(actions.values()))[0]
        continues: bool = getattr(self, f"_{name}")()
        if continues and self.chance(0.5):
            self._size()
        return continues

    def _feed(self, stem: str, values: list[str]) -> str:
        return "{" + ", ".join(f"{stem}{at}: {value}" for at, value in enumerate(values)) + "}"

    def _wait(self, would_block: bool) -> int | None:
        """A timeout, where nothing could end the run in a program of one thread."""
        return 15 if would_block and not self.blocks else None

    def _put(self) -> bool:
        wrong = self.components[0].shape is not None and self.chance(0.04)
        stuck = not self.closed and not wrong and self.room() < 1
        if stuck and not self.blocks and self.chance(0.8):
            return self._take()
        self.run("put", self._feed("x", self.element(wrong=wrong)), timeout=self._wait(stuck))
        if not wrong and not self.closed and not stuck:
            self.size += 1
        return True

    def _puts(self) -> bool:
        rows = self.draw.choice((0, 1, 2, 2, 3, 3, 4, 6))
        several = self.components[0].shape is None and len(self.components) > 1
        wrong = self.chance(0.2 if several else 0.06) and rows > 0
        stuck = not self.closed and self.room() < rows and not wrong
        if stuck and not self.blocks and self.chance(0.8):
            return self._take()
        self.run("puts", self._feed("xs", self.batch(rows, wrong=wrong)), timeout=self._wait(stuck))
        if not self.closed and not wrong:
            self.size += min(rows, self.room())
        return True

    def _take(self) -> bool:
        stuck = not self.closed and not self.ready()
        if stuck and not self.blocks and self.chance(0.8):
            return self._peek()
        fetch = "take"
        if self.chance(0.05):
            fetch = "[take, take]"
        self.run(fetch, timeout=self._wait(stuck))
        self.size -= bool(self.ready())
        return True

    def _batch(self, fetch: str = "batch") -> bool:
        n = self.draw.choice((0, 1, 1, 2, 2, 3, 3, 4, 6, -1))
        if self.components[0].shape is None and not self.blocks:
            n = min(n, 1)
        stuck = not self.closed and n > self.ready() and self.components[0].shape is not None
        if stuck and not self.blocks and self.chance(0.85):
            return self._peek()
        spelled = f"[{n}]" if self.chance(0.02) else str(n)
        self.run(fetch, f"{{n: {spelled}}}", timeout=self._wait(stuck))
        if self.components[0].shape is not None:
            if n <= self.ready():
                self.size -= max(n, 0)
            elif fetch == "upto" and self.closed:
                self.size = 0
        # What TensorFlow loses of the rows of a batch that times out, it loses for good.
        return not (stuck and not self.blocks and self.ready() and self.kind != "PriorityQueue")

    def _upto(self) -> bool:
        return self._batch("upto")

    def _close(self) -> bool:
        self.run("close")
        self.closed = True
        return True

    def _cancel(self) -> bool:
        self.run("cancel")
        self.closed = True
        return True

    def _both(self) -> bool:
        """One step that takes and puts."""
        if self.blocks or self.closed or (self.size and self.room() < 1) or self.capacity == 0:
            return self._take()
        fetch = self.draw.choice(("[take, put]", "{'put': put, 'took': take}", "(put, [take])"))
        self.run(fetch, self._feed("x", self.element()))
        return True

    def _size(self) -> bool:
        self.lines.append("here(size)")
        return True

    def _closed(self) -> bool:
        self.lines.append("here(closed)")
        return True

    def _peek(self) -> bool:
        return self._size() if self.chance(0.7) else self._closed()

    def _declared(self) -> bool:
        """Run an op whose values are constants of the graph."""
        constants = [line.split()[0] for line in self.lines if line[:4] in ("put0", "put1", "puts")]
        constants = [name for name in constants if name[-1].isdigit()]
        if not constants:
            return self._peek()
        name = self.draw.choice(constants)
        if not self.blocks and not self.closed:
            if self.room() < 3:
                return self._take()
            # How many rows it has is not known here; so that later guesses are on the safe side.
            self.size = self.size + 1 if name.startswith("puts") or self.size == 0 else self.size
            if name.startswith("puts"):
                self.capacity -= 2 if self.capacity > 2 else 0
        self.run(name)
        return True

    def _late_close(self) -> bool:
        """A close that may still wait for its turn when its time is up."""
        if not self._first_cut("put"):
            return self._peek()
        self.lines += ["go(close, timeout=15)", "pause()"]
        return True

    def _timeout(self) -> bool:
        """A run that is cut short, beside others that go on blocking."""
        if self.kind == "PriorityQueue" and self.chance(0.5):
            side, line = "take", "here(batch, {n: 3}, timeout=15)"
        elif self.chance(0.5):
            side, line = "take", "here(take, timeout=15)"
        else:
            side, line = "put", f"here(put, {self._feed('x', self.element())}, timeout=15)"
        if not self._first_cut(side):
            return self._peek()
        self.lines.append(line)
        return True

    def _first_cut(self, side: str) -> bool:
        """Whether none has been cut short on this side.

        TensorFlow leaves what is cut short in line behind those that wait, and knows it by an
        address that the next run may get. If that is cut short as well, what is found in line is
        the first one, and the second waits for ever: two in a row hang every time.
        """
        is_first = side not in self.cut
        self.cut.add(side)
        return is_first


def one_thread(kind: str) -> Maker:
    """Programs of one thread on a kind of queue."""

    def write(draw: random.Random) -> list[str]:
        return _written(Writer(draw, kind, blocks=False), draw.randint(8, 30))

    return write


def blocked(kind: str) -> Maker:
    """Programs in which runs block in the background."""

    def write(draw: random.Random) -> list[str]:
        return _written(Writer(draw, kind, blocks=True), draw.randint(6, 22))

    return write


def _written(writer: Writer, length: int) -> list[str]:
    writer.declare()
    if writer.blocks and writer.chance(0.15):
        # A step that fails while one of its ops waits.
        writer.lines.append("go([take, batch], {n: -1})")
    for _ in range(length):
        if not writer.act():
            break
    return writer.lines


_KINDS = ("FIFOQueue", "RandomShuffleQueue", "PaddingFIFOQueue", "PriorityQueue")
QUEUES: dict[str, Maker] = {
    **{f"{kind}, one thread": one_thread(kind) for kind in _KINDS},
    **{f"{kind}, blocked": blocked(kind) for kind in _KINDS},
}
"""The kinds of programs of this module by name."""
