"""Where `aioqueue.compat.v1` does better than TensorFlow on purpose, each by name.

`KINDER` says all of them, and `test_kinder` shows each beside TensorFlow. Random programs run into
some; `allowed` recognises those, and the comparison of such a program ends there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from proofs.oracle.stage import Outcome, Sight, is_as_informative, nearly

KINDER: dict[str, str] = {
    "rows of a cancelled batch": (
        "A dequeue_many that times out, or whose session closes, loses the rows that it holds in"
        " TensorFlow; here they go back to the queue."
    ),
    "remainder of a priority queue": (
        "PriorityQueue.dequeue_up_to on a closed queue with fewer rows throws them away and raises"
        " OutOfRangeError in TensorFlow; here it returns them, as the other queues do."
    ),
    "oversized batch of a priority queue": (
        "A batch of more than the capacity waits for the close of a PriorityQueue in both; in"
        " TensorFlow all dequeues behind it do so too, here they go on."
    ),
    "equal priorities": (
        "Elements of the same priority leave in an order that TensorFlow does not promise, that of"
        " its heap; here in the order in which they came."
    ),
    "padding of any rank": (
        "PaddingFIFOQueue.dequeue_many of elements of rank 5 and an unknown dimension raises"
        " UnimplementedError in TensorFlow, and the rows are lost; here it pads them."
    ),
    "errors given to request_stop": (
        "request_stop(error) outside of an except block fails with a TypeError in TensorFlow, and"
        " join with it; here the error is recorded, and join raises it."
    ),
    "all errors of a coordinator": (
        "Errors after the first one are dropped in TensorFlow; here join raises the first one with"
        " the ExceptionGroup of all of them as its __cause__."
    ),
    "join at once": (
        "join looks once a second whether the threads have ended by themselves in TensorFlow; here"
        " it returns when they have."
    ),
    "integers out of range": (
        "A Python integer that does not fit its dtype wraps around silently in TensorFlow 2.21;"
        " here it raises OverflowError."
    ),
    "run of a closed monitored session": (
        "It raises AttributeError, of None, in TensorFlow; here RuntimeError, which says that it"
        " is closed."
    ),
    "rows of no numbers": (
        "enqueue_many of rows that hold no numbers, of shape [3, 0], crashes the process in"
        " TensorFlow 2.21; here they are rows like others."
    ),
    "shape of a chosen queue's size": (
        "The static shape of size() of a queue that from_list makes is unknown in TensorFlow; here"
        " it is a scalar's."
    ),
    "words about closed exception types": (
        "QueueRunner tells the wrong queue_closed_exception_types without the tuple around them in"
        " TensorFlow, by a slip of formatting; here as they were given."
    ),
    "runner of what is no op": (
        "create_threads of a QueueRunner whose enqueue_ops hold something that is no op raises"
        " AttributeError in TensorFlow 2; here, as in TensorFlow 1, its run tells."
    ),
    "op of an error": (
        "TensorFlow finds no op for errors in a queue runner's thread, nor where a message has"
        " brackets of its own, such as a shape; here an error has the op that failed."
    ),
    "array of file names": (
        "string_input_producer of a NumPy array of several names raises ValueError in TensorFlow,"
        " which asks for its truth value; here it is like a list."
    ),
    "record cut off in its length": (
        "A TFRecord file that ends within the 12 bytes before a record's data is read in TensorFlow"
        " as if it ended before them; here that is a DataLossError, as it is within the data."
    ),
    "no repetition of what is shuffled": (
        "Dataset.shuffle(...).repeat(0) is joined to one stage in TensorFlow 2.21, which refuses no"
        " repetitions, or makes a one-shot iterator wait for ever; here it is an empty dataset."
    ),
    "places of a failed write": (
        "scatter_update and its kin write to the places before the first one that is not there in"
        " TensorFlow, and raise then; here nothing is written."
    ),
    "scalar as a batch": (
        "A scalar fed to enqueue_many has a random number of rows in TensorFlow, read from memory"
        " that is not its own; here the error says that it has none."
    ),
    "arithmetic with an array of another shape": (
        "tensor - array of shapes that do not fit raises NotImplementedError about a conversion in"
        " TensorFlow 2, which asks NumPy when its own op has failed; here it raises the ValueError"
        " of that op, as TensorFlow does for array - tensor."
    ),
}
"""What we do better, by name, and why."""
SHUFFLED_AND_NOT_REPEATED = re.compile(r"\.shuffle\([^()]*\)(\.repeat\(1\))*\.repeat\(0\)")
CUT_SHORT = ("Timed out waiting for notification", "Dequeue operation was cancelled")


def agree(theirs: Sight, ours: Sight) -> bool:
    """Whether both did the same.

    Args:
        theirs: what TensorFlow did.
        ours: what we did.
    """
    if theirs == ours:
        return True
    (at, expected), (number, got) = theirs, ours
    if at != number:
        return False
    if expected[0] == got[0] == "about":
        (_, expected), (_, got) = expected, got
        return _fail_alike(expected, got) if expected[0] == "raises" else nearly(expected, got)
    if expected[0] == got[0] == "form":
        return is_as_informative(expected, got)
    return expected[0] == "raises" and _fail_alike(expected, got)


def _fail_alike(expected: Outcome, got: Outcome) -> bool:
    """Whether two errors say the same, of an op that is the same as far as there is one."""
    if expected[:3] != got[:3]:
        return False
    there, here = expected[3], got[3]
    if there is None:
        return bool(expected[1] != "DeadlineExceededError")  # a timeout has no op
    # What is one op here is a scope with several in TensorFlow, one of which fails.
    return bool(there == here or (here is not None and there.startswith(f"{here}/")))


def allowed(
    lines: Sequence[str], number: int, theirs: list[list[Sight]], ours: list[list[Sight]]
) -> str | None:
    """The name of what we did better at a line where the two parted; None if it is a difference.

    Args:
        lines: the program.
        number: the first line at which they did not do the same.
        theirs: what TensorFlow did at each line.
        ours: what we did.
    """
    if _lost_batch(lines, number, theirs):
        return "rows of a cancelled batch"
    oversized = _oversized_batches(lines)
    if any(line < number for line in oversized):
        differ = {line for line, _ in set(theirs[number]) ^ set(ours[number])}
        if differ - oversized or _requested(theirs[number]) == _requested(ours[number]):
            return "oversized batch of a priority queue"
    if any(map(SHUFFLED_AND_NOT_REPEATED.search, lines)) and any(
        outcome[:2] == ("raises", "DeadlineExceededError") or "count must be" in str(outcome)
        for _, outcome in map(_plainly, theirs[number])
    ):
        return "no repetition of what is shuffled"
    got = dict(ours[number])
    for line, outcome in theirs[number]:
        if _asks_numpy(outcome) and line in got and _misfit(got[line]):
            return "arithmetic with an array of another shape"
    if any("tf.TFRecordReader" in line for line in lines):
        lost = {line for line, outcome in ours[number] if _is_truncated(outcome)}
        if lost - {line for line, outcome in theirs[number] if _is_truncated(outcome)}:
            return "record cut off in its length"
    for line, outcome in theirs[number]:
        is_remainder = line in got and got[line][0] != "raises"
        if is_remainder and "upto" in lines[line] and _is_short_priority_queue(outcome):
            return "remainder of a priority queue"
    return None


def _plainly(seen: Sight) -> Sight:
    """What was seen, whether or not the last bits of its floats are of interest."""
    line, outcome = seen
    return (line, outcome[1]) if outcome[0] == "about" else seen


def _asks_numpy(outcome: Outcome) -> bool:
    failed = outcome[:2] == ("raises", "NotImplementedError")
    return failed and outcome[2].startswith("Cannot convert a symbolic")


def _misfit(outcome: Outcome) -> bool:
    failed = outcome[:2] == ("raises", "ValueError")
    return failed and outcome[2].startswith("Dimensions must be equal")


def _is_truncated(outcome: Outcome) -> bool:
    is_loss = outcome[0] == "raises" and outcome[1] == "DataLossError"
    return is_loss and "truncated record" in outcome[2]


def _lost_batch(lines: Sequence[str], number: int, theirs: list[list[Sight]]) -> bool:
    """Whether a batch was cut short before, which holds rows in all queues but one."""
    if any("tf.PriorityQueue" in line for line in lines):
        return False
    return any(
        outcome[0] == "raises" and outcome[2] in CUT_SHORT
        for seen in theirs[: number + 1]
        for line, outcome in seen
        if line < len(lines) and re.search(r"\((batch|upto|three)\b", lines[line])
    )


def _requested(seen: list[Sight]) -> str:
    """What is seen, but for how many elements were left when a batch failed."""
    return re.sub(r"current size \d+", "", repr(seen))


def _oversized_batches(lines: Sequence[str]) -> set[int]:
    """The lines that ask a priority queue for more than it can ever have."""
    capacity, constant, found = -1, 0, set()
    for number, line in enumerate(lines):
        if queue := re.search(r"tf\.PriorityQueue\((-?\d+)", line):
            capacity = int(queue[1])
        if batch := re.match(r"three = .*\((\d+)\)", line):
            constant = int(batch[1])
        asked = re.search(r"\((?:(?:batch|upto), \{n: \[?(\d+)|three)", line)
        if asked and 0 <= capacity < int(asked[1] or constant):
            found.add(number)
    return found


def _is_short_priority_queue(outcome: Outcome) -> bool:
    return outcome[:2] == ("raises", "OutOfRangeError") and outcome[2].startswith("PriorityQueue")
