"""Published environments, unchanged: ``ors-server serve FOLDER`` responds as their own SDK's server does.

``ORS_PUBLISHED_ENVIRONMENTS`` names a folder with a checkout in each of its folders (or several, separated as in PATH).
Each gets a virtual environment of its own, outside of the clone. The same script (``published/transcripts.py``) is
played on two reference servers and on this one, at the same time. Responses in which the two reference servers differ
(environments with randomness) are not compared.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.long.published.transcripts import Transcript, transcript
from tests.long.published.virtual_environments import python_of
from tests.support.paths import ROOT
from tests.support.servers import free_port, running

pytestmark = pytest.mark.long

HERE = Path(__file__).resolve().parent / "published"
VARIABLE = "ORS_PUBLISHED_ENVIRONMENTS"
#: Minimum of compared responses; fewer would prove nothing.
LEAST = 40


def checkouts() -> list[Path]:
    """Return the folders of published environments that this machine has."""
    parents = [Path(each) for each in os.environ.get(VARIABLE, "").split(os.pathsep) if each]
    return sorted(path.parent for parent in parents for path in parent.glob("*/server.py"))


def play(checkout: Path, name: str, python: Path, folder: Path) -> Transcript:
    """Play the script on this server if ``name`` is "here", else on a reference server. Return the transcript."""
    port = free_port()
    folder = folder / name
    folder.mkdir()
    if name == "here":
        command: list[str | Path] = [python, "-m", "ors_cli", "serve", checkout, "--port", str(port)]
    else:
        command = [python, HERE / "reference.py", checkout, str(port)]
    variables = {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'containers'}",
        "PYTHONHASHSEED": "0",
        # Modules that pip has not compiled are compiled once: openreward imports thousands of modules.
        "PYTHONDONTWRITEBYTECODE": "",
        "OPENREWARD_DISABLE_UPDATE_CHECK": "1",
        "ORS_DATA_DIR": str(folder / "data"),
    }
    if name != "here":
        variables["TMPDIR"] = str(folder)  # a cache there may not be made by two processes at once
    url = f"http://127.0.0.1:{port}"
    with running(command, folder, cwd=folder, variables=variables, url=url, patience=600, new_session=True) as server:
        try:
            return transcript(url)
        finally:
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.stop(signal.SIGTERM)
            # Workers that the environment forked outlive the reference server.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.process.pid, signal.SIGKILL)


def differences(reference: Transcript, again: Transcript, here: Transcript) -> tuple[int, list[str]]:
    """Return the number of compared responses, and those that differ."""
    compared, found = 0, list[str]()
    for number, (asked, expected) in enumerate(reference):
        if number >= len(again) or again[number] != (asked, expected):
            continue  # the environment is random
        compared += 1
        answered = here[number] if number < len(here) else (asked, "nothing")
        if answered != (asked, expected):
            found.append(f"{asked}\n{first_difference(expected, answered[1])}")
    return compared, found


def first_difference(reference: object, here: object) -> str:
    """Return the first difference of two responses, with its context."""
    texts = [json.dumps(each, sort_keys=True) for each in (reference, here)]
    equal = next((place for place, (one, other) in enumerate(zip(*texts, strict=False)) if one != other), 0)
    start = max(equal - 100, 0)
    return "\n".join(
        f"  {name} …{text[start : start + 250]}…" for name, text in zip(("reference", "here"), texts, strict=True)
    )


@pytest.mark.skipif(not checkouts(), reason=f"{VARIABLE} names no folder with checkouts of published environments")
@pytest.mark.parametrize("checkout", checkouts(), ids=lambda checkout: checkout.name)
def test_it_answers_as_the_reference_server(checkout: Path, tmp_path: Path) -> None:
    reads_data = any("/orwd_data" in module.read_text("utf-8") for module in checkout.glob("*.py"))
    if reads_data and not any(checkout.glob("*.parquet")):
        pytest.skip(f"{checkout.name} reads the platform's data folder, and no data is beside it")
    python = python_of(checkout)
    with ThreadPoolExecutor(3) as threads:
        played = [threads.submit(play, checkout, name, python, tmp_path) for name in ("reference", "again", "here")]
        reference, again, here = (each.result() for each in played)
    compared, found = differences(reference, again, here)
    print(
        f"{checkout.name}: {compared} of {len(reference)} answers compared; the reference servers differ in the others"
    )
    assert not found, "\n".join(found[:10])
    assert len(here) == len(reference)
    assert compared >= LEAST
