"""Crawl web sites, politely, and write what the pages say as Parquet.

How the data flows::

    frontier ──urls──► fetch: 32 threads,   ──pages──► parse: processes ──records──► pages.parquet
       ▲               2 per host at most                                  │
       └───────────────────────── links not seen before ◄──────────────────┘

* The frontier is a queue of URLs without a bound. The links of a page are put into it, each URL
  once. When no page is left in work, the coordinator's block ends, and all workers with it.
* `fetch` waits for the network, so it runs on threads. `concurrency_key` and `max_per_key` keep it
  from asking one host too much at a time, while others are asked.
* `parse` is Python code that holds the GIL, so it runs in processes.
* A page that cannot be fetched is a record too, with the reason: nothing is lost silently.

It needs ``pip install '.[parquet]'``::

    python examples/crawler.py https://example.org --pages 100 --out pages.parquet
"""

from __future__ import annotations

import argparse
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urldefrag, urljoin, urlsplit

import pyarrow
import pyarrow.parquet

from aioqueue import sync
from aioqueue.inputs import prepare

SCHEMA = pyarrow.schema(
    [
        ("url", pyarrow.string()),
        ("status", pyarrow.string()),
        ("title", pyarrow.string()),
        ("words", pyarrow.int64()),
        ("links", pyarrow.list_(pyarrow.string())),
    ]
)
ROW_GROUP = 256  # records that are written together


class Page(NamedTuple):
    """What a server has answered."""

    url: str
    status: str
    body: str = ""


def host_of(url: str) -> str:
    """Requests few pages at a time."""
    return urlsplit(url).netloc


def fetch(url: str) -> Page:
    """Get a page; what goes wrong becomes its status."""
    try:
        with urllib.request.urlopen(url, timeout=20) as response:
            if response.headers.get_content_type() != "text/html":
                return Page(url, "no page")
            charset = response.headers.get_content_charset("utf-8")
            return Page(url, "ok", response.read().decode(charset, errors="replace"))
    except urllib.error.HTTPError as error:
        with error:  # it is also the answer, and has a file open
            return Page(url, str(error))
    except (OSError, ValueError, LookupError) as error:
        return Page(url, str(error))


class PageParser(HTMLParser):
    """Collects the title, the words and the links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.title = ""
        self.words = 0
        self.links: list[str] = []
        self._is_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._is_title = tag == "title"
        if tag == "a":
            self.links += [value for name, value in attrs if name == "href" and value]

    def handle_endtag(self, tag: str) -> None:
        self._is_title = False

    def handle_data(self, data: str) -> None:
        if self._is_title:
            self.title += data
        else:
            self.words += len(data.split())


def parse(page: Page) -> dict[str, Any]:
    """The record of a page."""
    parser = PageParser()
    parser.feed(page.body)
    links = {urldefrag(urljoin(page.url, link)).url for link in parser.links}
    return {
        "url": page.url,
        "status": page.status,
        "title": parser.title.strip(),
        "words": parser.words,
        "links": sorted(link for link in links if link.startswith(("http://", "https://"))),
    }


def crawl(start: Sequence[str], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The records of all pages that can be reached, up to so many, as they are parsed."""
    frontier = sync.FIFOQueue(None, name="frontier")
    pages = sync.FIFOQueue(64, name="pages")
    records = sync.FIFOQueue(64, name="records")
    fetching = prepare(
        frontier,
        fetch,
        into=pages,
        workers=options.workers,
        max_in_flight=1024,  # URLs of one host may come in a row; this many are looked through
        concurrency_key=host_of,
        max_per_key=options.per_host,
    )
    parsing = prepare(pages, parse, into=records, where="process", workers=options.processes)
    seen: set[str] = set()

    def enqueue_new(urls: Sequence[str]) -> int:
        new = [url for url in dict.fromkeys(urls) if url not in seen]
        new = new[: options.pages - len(seen)]
        seen.update(new)
        frontier.enqueue_many(new)
        return len(new)

    with sync.Coordinator() as coord:
        in_work = enqueue_new(start)
        coord.start(fetching)
        coord.start(parsing)
        while in_work:
            record = records.dequeue()
            in_work += enqueue_new(record["links"]) - 1
            yield record


def write(records: Iterator[dict[str, Any]], path: Path) -> int:
    """Write records as Parquet, some at a time; returns how many there were."""
    count = 0
    with pyarrow.parquet.ParquetWriter(path, SCHEMA) as writer:
        while rows := list(islice(records, ROW_GROUP)):
            writer.write_table(pyarrow.Table.from_pylist(rows, SCHEMA))
            count += len(rows)
            print(f"{count:,} pages", flush=True)
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description="Crawl web sites, and write Parquet.")
    parser.add_argument("urls", nargs="+", help="where to begin")
    parser.add_argument("--pages", type=int, default=1000, help="how many to fetch at most")
    parser.add_argument("--workers", type=int, default=32, help="pages to fetch at a time")
    parser.add_argument("--per-host", type=int, default=2, help="of those, how many of one host")
    parser.add_argument("--processes", type=int, default=2, help="processes that parse")
    parser.add_argument("--out", type=Path, default=Path("pages.parquet"))
    options = parser.parse_args()
    print(f"wrote {write(crawl(options.urls, options), options.out):,} pages to {options.out}")


if __name__ == "__main__":
    main()
