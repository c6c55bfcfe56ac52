"""The table of an environment's needs: each with whether it is there, and the command that supplies it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from ors_server.checkouts.system_needs import DATA_MOUNT, UNKNOWN_IMAGE, Needs

__all__ = ["Host", "Row", "rows_of"]

_SIZE = re.compile(r"([\d.]+):([\d.]+)")
_EXAMPLE_URL = "http://127.0.0.1:8000/v1"


class Row(NamedTuple):
    """One need."""

    need: str
    #: What the source asks for, and where.
    wanted: str
    #: None where only an episode can tell.
    there: bool | None
    state: str
    #: What supplies it; empty where it is there.
    remedy: str = ""


class Host(NamedTuple):
    """Offers of this machine and its operator to one environment."""

    name: str
    #: The data folder, and whether the operator named it.
    data: Path
    data_named: bool
    #: Names of secrets in the operator's file.
    secrets: frozenset[str]
    variables: Mapping[str, str]
    #: Returns why an image is not there, and the command that provides it; None where it is there.
    missing_image: Callable[[str], tuple[str, str] | None]


def rows_of(needs: Needs, host: Host) -> list[Row]:
    """Return the needs of an environment as rows, those of one kind together."""
    return [*_images(needs, host), *_sizes(needs), *_networks(needs), *_data(needs, host), *_secrets(needs, host)]


def _images(needs: Needs, host: Host) -> Iterator[Row]:
    for image, place in needs.images.items():
        wanted = f"{'one that each task names' if image == UNKNOWN_IMAGE else image} ({place})"
        if "*" in image:
            example = image if image != UNKNOWN_IMAGE else "NAME"
            yield Row("image", wanted, None, "shown by an episode", f"`ors-server image map {example}` looks one up.")
            continue
        missing = host.missing_image(image)
        if missing is None:
            yield Row("image", wanted, True, "in the store, or made at its first use")
        else:
            yield Row("image", wanted, False, *missing)
    for place in needs.sidecars.values():
        yield Row("sandbox", f"sidecars ({place})", None, "shown by an episode")


def _sizes(needs: Needs) -> Iterator[Row]:
    processors = os.cpu_count() or 1
    memory = os.sysconf("SC_PAGESIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    for size, place in needs.sizes.items():
        if size == UNKNOWN_IMAGE:
            yield Row("size", f"one that a run decides ({place})", None, "shown by an episode")
            continue
        wanted = f"{size} CPU:GB ({place})"
        match = _SIZE.fullmatch(size)
        if match is None:
            yield Row("size", f"{size} ({place})", False, "no sandbox here has a GPU", "Host it where it needs none.")
        elif float(match.group(1)) > processors or float(match.group(2)) > memory:
            has = f"this machine has {processors} CPUs and {memory:.0f} GB"
            yield Row("size", wanted, False, has, "Host it on a larger machine.")
        else:
            yield Row("size", wanted, True, f"room for {int(memory / float(match.group(2)))} at once")


def _networks(needs: Needs) -> Iterator[Row]:
    for kind, place in needs.open_network.items():
        wanted = f"{kind} network in sandboxes ({place})"
        yield Row("network", wanted, None, "sandboxes have none unless the operator allows it")
    for package, place in needs.network.items():
        yield Row("network", f"{package} in its own process ({place})", None, "it has this machine's network")


def _data(needs: Needs, host: Host) -> Iterator[Row]:
    if not (needs.data or needs.buckets or host.data_named):
        return
    places = needs.data or needs.buckets
    wanted = DATA_MOUNT + (f" ({next(iter(places.values()))})" if places else "")
    empty = not host.data.is_dir() or not any(host.data.iterdir())
    if empty:
        remedy = (
            f"Add --data {host.name}=DIR; or `orwd upload local/{host.name} FILE…` while it serves, and start it again."
        )
        yield Row("data", wanted, False, f"{host.data} is empty", remedy)
        return
    missing = [name for name in needs.data if not (host.data / PurePosixPath(name)).exists()]
    if missing:
        files = ", ".join(missing)
        yield Row("data", wanted, False, f"{host.data} has no {files}", f"Copy {files} into {host.data}.")
    else:
        yield Row("data", wanted, True, str(host.data))


def _secrets(needs: Needs, host: Host) -> Iterator[Row]:
    # An author's code that reads two spellings of a name takes whichever is there.
    supplied = {name.lower() for name in needs.secrets if name in host.secrets}
    spelt = {name.lower(): name for name in host.secrets}
    for name, place in needs.secrets.items():
        wanted = f"{name} ({place})"
        if name == "api_key":
            yield Row("secret", wanted, True, "a local token where the client has none")
        elif name in host.secrets:
            yield Row("secret", wanted, True, "in the operator's file")
        elif name.lower() in supplied:
            yield Row("secret", wanted, True, "its other spelling is in the operator's file")
        elif name.lower() in spelt:
            other = spelt[name.lower()]
            remedy = f"Write {name}=VALUE too: the program reads no {other}."
            yield Row("secret", wanted, False, f"the operator's file has only {other}", remedy)
        else:
            remedy = f"Write {name}=VALUE into a file and add --secrets-file FILE, or let the client send it."
            yield Row("secret", wanted, False, "not in the operator's file", remedy)
    for package, place in needs.judges.items():
        wanted = f"a model, by {package} ({place})"
        url = host.variables.get("OPENAI_BASE_URL", "")
        if package != "openai":
            yield Row("judge", wanted, None, "it calls its own platform")
        elif url:
            yield Row("judge", wanted, True, url)
        else:
            remedy = f"`export OPENAI_BASE_URL={_EXAMPLE_URL}` for a model of your own."
            yield Row("judge", wanted, False, "OPENAI_BASE_URL is not set: it asks OpenAI", remedy)
    for name, place in needs.search.items():
        yield Row("search", f"{name} ({place})", None, "needs a network and a key of its search engine")
