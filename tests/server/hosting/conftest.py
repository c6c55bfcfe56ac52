"""Two hosted environments, written for ``openreward`` as published ones are, in processes of their own."""

import json
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.support.events import parse_events
from tests.support.paths import ROOT
from tests.support.processes import children, command_line
from tests.support.servers import Running, running

SOURCE = '''
import asyncio, os, subprocess
from pathlib import Path
from openreward.environments import Environment, Server, Split, TextBlock, ToolOutput, tool
from pydantic import BaseModel

class Text(BaseModel):
    text: str

class NAME(Environment):
    def __init__(self, task_spec={}, secrets={}):
        super().__init__(task_spec)
        self.given = secrets

    @classmethod
    def list_splits(cls):
        return [Split(name="train", type="train")]

    @classmethod
    def list_tasks(cls, split):
        return [{"id": "0", "drawn": hash("a task"), "order": list({"a", "b", "c", "d"})}]

    def get_prompt(self):
        return [TextBlock(text="NAME")]

    @tool
    async def variable(self, params: Text) -> ToolOutput:
        """Read a variable."""
        return ToolOutput(blocks=[TextBlock(text=os.environ.get(params.text, "none"))], reward=0.0, finished=False)

    @tool
    async def secret(self, params: Text) -> ToolOutput:
        """Read a secret."""
        return ToolOutput(blocks=[TextBlock(text=self.given.get(params.text, "none"))], reward=0.0, finished=False)

    @tool
    async def secrets(self, params: Text) -> ToolOutput:
        """Return all secrets."""
        return ToolOutput(blocks=[TextBlock(text=str(self.given))], reward=0.0, finished=False)

    @tool
    async def data(self, params: Text) -> ToolOutput:
        """Read a file of the data folder."""
        return ToolOutput(blocks=[TextBlock(text=Path("/orwd_data", params.text).read_text())])

    @tool
    async def shell(self, params: Text) -> ToolOutput:
        """Run a command."""
        ran = subprocess.run(params.text, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return ToolOutput(blocks=[TextBlock(text=ran.stdout.decode(errors="replace"))])

    @tool
    async def wait(self, params: Text) -> ToolOutput:
        """Wait for the end."""
        await asyncio.sleep(float(params.text))
        return ToolOutput(blocks=[TextBlock(text="waited")], reward=1.0, finished=True)

if __name__ == "__main__":
    Server([NAME]).run()
'''


@dataclass(frozen=True)
class Front:
    """The server, and what its environments read."""

    running: Running
    folder: Path

    @property
    def url(self) -> str:
        return self.running.url

    def process_of(self, name: str) -> int:
        """Return the id of an environment's process, below those that keep it apart."""
        found = process = self.running.process.pid
        while process:
            below = children(process)
            process = next((child for child in below if f"/{name}/server.py".encode() in command_line(child)), 0)
            found = process or found
        if found == self.running.process.pid:
            raise LookupError(name)
        return found

    def create(self, name: str, sid: str, **secrets: str) -> httpx.Response:
        body = {"env_name": name, "split": "train", "index": 0, "secrets": secrets}
        return httpx.post(f"{self.url}/create", json=body, headers={"X-Session-ID": sid}, timeout=30)

    def call(self, sid: str, tool: str, text: str) -> str:
        """Return the text of a tool's output."""
        body = {"name": tool, "input": {"text": text}}
        answer = httpx.post(f"{self.url}/call", json=body, headers={"X-Session-ID": sid}, timeout=30)
        answer.raise_for_status()
        return json.loads(parse_events(answer.content)[-1].data)["output"]["blocks"][0]["text"]


def can_bind(folder: Path) -> bool:
    program = (sys.executable, "-m", "ors_containers.linux.bound_folder", str(folder), "/orwd_data", "true")
    return subprocess.run(program, check=False, capture_output=True).returncode == 0


@contextmanager
def fronted(folder: Path, **variables: str) -> Generator[Front]:
    pytest.importorskip("openreward")
    arguments: list[str] = [] if can_bind(folder) else ["--unmounted"]
    for name in ("Walk", "Swim"):
        (folder / name).mkdir()
        (folder / name / "server.py").write_text(SOURCE.replace("NAME", name))
        (folder / f"{name}-data").mkdir()
        (folder / f"{name}-data" / "name.txt").write_text(name)
        arguments += [str(folder / name), str(folder / f"{name}-data")]
    (folder / "secrets").write_text("# of the operator\nopenai_api_key = sk-of-the-operator\n")
    variables |= {"ORS_DATA_DIR": str(folder / "kept"), "ORS_SECRETS_FILE": str(folder / "secrets")}
    command = [sys.executable, "-m", "tests.server.hosting.hosted_server", *arguments]
    with running(command, folder / "log", cwd=ROOT, variables=variables) as server:
        yield Front(server, folder)


@pytest.fixture(scope="session")
def front(tmp_path_factory: pytest.TempPathFactory) -> Generator[Front]:
    """Serve ``Walk`` and ``Swim`` on one address, each with a data folder that names it."""
    with fronted(tmp_path_factory.mktemp("front"), ORS_RECORD="yes") as front:
        yield front


@pytest.fixture
def mortal_front(tmp_path: Path) -> Generator[Front]:
    """Serve the same for one test, which kills processes."""
    with fronted(tmp_path) as front:
        yield front
