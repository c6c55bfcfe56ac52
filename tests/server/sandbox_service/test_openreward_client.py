"""The real client ``openreward`` on the sandbox service, asynchronous and synchronous, and its scaffold unchanged."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

import asyncio
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from openreward import AsyncOpenReward, OpenReward, SandboxBucketConfig, SandboxSettings
from openreward.api.sandboxes.types import FileTransferError, SandboxEgressRule, SandboxNetworkPolicy

from tests.support.servers import running

_IMAGES = '[images]\n"generalreasoning/python-ds:3.12-tools" = { dockerfile = "Dockerfile" }\n'
_DOCKERFILE = "FROM host\nRUN mkdir -p /home/ubuntu\nWORKDIR /home/ubuntu\nENV GREETING=hello\n"
_SETTINGS = SandboxSettings(
    environment="YourUsername/SandboxEnv",
    image="generalreasoning/python-ds:3.12-tools",
    machine_size="0.5:1",
    bucket_config=SandboxBucketConfig(mount_path="/tmp/sandbox/"),
)


@pytest.fixture(scope="module")
def scaffold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that ``orwd init --template sandbox`` writes."""
    folder = tmp_path_factory.mktemp("scaffold")
    command = [str(Path(sys.executable).with_name("orwd")), "init", "x", "--template", "sandbox"]
    variables = {**os.environ, "HOME": str(folder), "OPENREWARD_DISABLE_UPDATE_CHECK": "1"}
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=120, env=variables)
    return folder / "x"


@pytest.fixture(scope="module")
def url(scaffold: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """Serve the scaffold with the sandbox service; its sandboxes find the service by the variables of the process."""
    from tests.support.servers import executable, free_port

    folder = tmp_path_factory.mktemp("server")
    (folder / "images.toml").write_text(_IMAGES)
    (folder / "Dockerfile").write_text(_DOCKERFILE)
    (folder / "data/files/sandboxenv").mkdir(parents=True)
    (folder / "data/files/sandboxenv/hint.txt").write_text("look here")
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    variables = {
        "ORS_IMAGE_MAP": str(folder / "images.toml"),
        "ORS_DATA_DIR": str(folder / "data"),
        "ORS_SANDBOX_SERVICE": "yes",
        "OPENREWARD_DISABLE_UPDATE_CHECK": "1",
        "OPENREWARD_API_URL": address,
        "OPENREWARD_URL": address,
        "OPENREWARD_SESSION_URL": address,
    }
    with running([executable(), "serve", str(scaffold), "--port", str(port)], folder / "log", variables=variables):
        yield address


@pytest.fixture(autouse=True)
def address(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OPENREWARD_API_URL", "OPENREWARD_URL", "OPENREWARD_SESSION_URL"):
        monkeypatch.setenv(variable, url)


@pytest.mark.filterwarnings("ignore:.*Sending a large body directly:ResourceWarning")
async def test_the_asynchronous_client(tmp_path: Path) -> None:
    local = tmp_path / "local"
    local.write_bytes(os.urandom(9_000_000))
    client = AsyncOpenReward(api_key="")
    policy = SandboxNetworkPolicy(rules=[SandboxEgressRule(action="deny", host="example.org")])
    other = _SETTINGS.model_copy(update={"network": policy})
    async with client.sandbox(_SETTINGS) as sandbox, client.sandbox(other) as second:
        assert (
            await sandbox.check_run("pwd; echo $GREETING; cat /tmp/sandbox/hint.txt")
            == "/home/ubuntu\nhello\nlook here"
        )
        result = await sandbox.run("printf 'x%.0s' $(seq 100)", max_bytes=50)
        assert (result.output, result.truncated) == ("x" * 50, True)
        result = await sandbox.run("sleep 20", timeout=0.5)
        assert (result.return_code, result.timed_out) == (124, True)
        outputs = await asyncio.gather(*(sandbox.check_run(f"sleep 0.3; echo {number}") for number in range(8)))
        assert outputs == [str(number) for number in range(8)]
        await sandbox.upload(local, "/root/a b")
        assert await sandbox.download("/root/a b") == local.read_bytes()
        sent = await sandbox.upload_from(local, "/new/folder/f")
        assert await sandbox.stat_file("/new/folder/f", sha256=True) == {"size": 9_000_000, "sha256": sent.sha256}
        assert await sandbox.copy_to(second, "/new/folder/f", "/copied/f") == sent
        assert await second.download_to("/copied/f", tmp_path / "back") == sent
        await sandbox.check_run("ln -s /new/folder/f link; : > empty")
        assert await sandbox.download("link") == local.read_bytes()
        assert await sandbox.download("/home/ubuntu/empty") == b""
        assert (await sandbox.download("/proc/version")).startswith(b"Linux")
        for path in ("/new", "/none"):
            with pytest.raises(FileTransferError):
                await sandbox.download(path)
        await second.set_network(policy)
        with pytest.raises(Exception, match="created without a network policy"):
            await sandbox.set_network(policy)


def test_the_synchronous_client(tmp_path: Path) -> None:
    (tmp_path / "local").write_text("text")
    with OpenReward(api_key="key").sandbox(_SETTINGS) as sandbox:
        output, status = sandbox.run("echo out; exit 4")
        assert (output, status) == ("out", 4)
        sandbox.upload(tmp_path / "local", "/root/f")
        assert sandbox.download("/root/f") == b"text"
        sandbox.upload_from(tmp_path / "local", "/root/g")
        assert sandbox.download_to("/root/g", tmp_path / "back").size == 4
        with pytest.raises(RuntimeError, match="Command failed"):
            sandbox.check_run("false")


async def test_an_image_that_is_missing() -> None:
    sandbox = AsyncOpenReward(api_key="").sandbox(_SETTINGS.model_copy(update={"image": "owner/none:1"}))
    with pytest.raises(RuntimeError, match="There is no image owner/none:1"):
        await sandbox.start()
    await sandbox.stop()


async def test_the_scaffold_asynchronously() -> None:
    environments = AsyncOpenReward(api_key="").environments
    environment = environments.get("sandboxenv")
    async with environment.session(split="train", index=0) as session:
        await session.get_prompt()
        result = await session.call_tool("bash", {"command": "pwd; ls /tmp/sandbox; exit 3"})
    assert getattr(result.blocks[0], "text") == "/home/ubuntu\nhint.txt\n\n(exit 3)"  # noqa: B009
    for connections in getattr(environments, "_clients").values():  # noqa: B009 - the client never closes them
        await connections.close()


@pytest.mark.long
def test_the_scaffold_synchronously() -> None:
    with OpenReward(api_key="") as client:
        environment = client.environments.get("sandboxenv")
        with environment.session(task=environment.list_tasks("test")[0]) as session:
            session.get_prompt()
            result = session.call_tool("bash", {"command": "echo $GREETING"})
    assert getattr(result.blocks[0], "text") == "hello\n\n(exit 0)"  # noqa: B009 - blocks of text have it
