"""A threaded script that watches sensors: drivers that crash come back, a setting is shared.

Each of four drivers reads a sensor, and crashes now and then. The main program publishes the
average of the readings. The drivers report how far their readings are from the latest average.
"""

import itertools
import logging
import sys
from collections import Counter
from collections.abc import Callable

import aioqueue
from aioqueue import sync

SENSORS, READINGS = 4, 30
logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")

readings = sync.FIFOQueue(capacity=8, name="readings")
average = sync.Latest(0.0, name="average")


def driver_of(sensor: int) -> Callable[[], None]:
    ticks = itertools.count()

    def driver() -> None:
        for tick in ticks:
            if tick == READINGS:
                raise aioqueue.OutOfRangeError("the sensor has been switched off")
            if tick and tick % 10 == 0:
                raise ConnectionError(f"sensor {sensor} has hung up at {tick}")
            _, expected = average.get()
            readings.enqueue((sensor, tick, sensor + tick - expected))

    return driver


coord = sync.Coordinator()
restart = aioqueue.Restart(times=2, backoff=lambda failures: failures / 1000, on=ConnectionError)
runner = sync.QueueRunner(readings, [driver_of(one) for one in range(SENSORS)], restart=restart)
threads = runner.create_threads(coord=coord, start=True)
counts: Counter[int] = Counter()
total = 0.0
try:
    for sensor, _, distance in readings:
        counts[sensor] += 1
        total += distance
        average.publish(total / counts.total())
finally:
    average.close()
    coord.request_stop()
    coord.join(threads)
print(f"readings: {sorted(counts.items())}")
print(f"restarts: {runner.times_restarted}, versions: {average.version}")
