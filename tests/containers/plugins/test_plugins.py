"""Our plug-ins for the runners of others, beside stand-ins for the runners: files, users, limits, errors, refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
from ors_containers import ContainerSettings, RuntimeUnavailable
from ors_containers.plugins.shared_runtime import SharedRuntime, import_runner

from tests.containers.plugins.stand_ins import RunnerError, install_harbor, install_inspect, install_verifiers
from tests.support.processes import processes

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module", autouse=True)
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SharedRuntime]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORS_IMAGES", str(tmp_path_factory.mktemp("images")))
        patch.setenv("ORS_IMAGE_MAP", str(tmp_path_factory.mktemp("map") / "images.toml"))
        try:
            found = await SharedRuntime.of_this_loop()
        except RuntimeUnavailable as error:
            pytest.skip(str(error))
        yield found
        assert await SharedRuntime.of_this_loop() is found
        await found.close()


async def test_a_runner_that_is_missing() -> None:
    with pytest.raises(ImportError, match=r"pip install .*\[harbor\]"):
        import_runner("no_such_runner.at_all", "harbor")


# ── Harbor ──


@pytest_asyncio.fixture(loop_scope="module")
async def harbor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Any]:
    (tmp_path / "trial").mkdir()
    environment = install_harbor(monkeypatch).OrsEnvironment(tmp_path, docker_image="host")
    await environment.start(False)
    yield environment
    await environment.stop(True)
    await environment.stop(True)


async def test_harbor_commands(harbor: Any) -> None:
    found = await harbor.exec("echo $TASK $MORE; echo apart >&2; exit 3", env={"MORE": "m"}, cwd="/tmp")
    assert (found.stdout, found.stderr, found.return_code) == ("t m\n", "apart\n", 3)
    harbor.default_user = "nobody"
    assert (await harbor.exec("id -un")).stdout == "nobody\n"
    assert (await harbor.exec("id -un", user="root")).stdout == "root\n"
    with pytest.raises(RuntimeError, match="timed out after 1 seconds"):
        await harbor.exec("sleep 60", timeout_sec=1)


async def test_harbor_output_is_streamed_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told: list[tuple[str, str]] = []

    async def callback(text: str, stream: str) -> None:
        await asyncio.sleep(0)
        told.append((stream, text))

    kind = install_harbor(monkeypatch).OrsEnvironment
    environment = kind(tmp_path, docker_image="host", callback=callback, workdir="/made/here")
    await environment.start(False)
    assert (await environment.exec("pwd")).stdout == "/made/here\n"
    told.clear()
    await environment.exec("printf '\\303'; sleep 0.3; printf '\\251'; echo apart >&2")
    await environment.stop(True)
    assert "".join(text for stream, text in told if stream == "stdout") == "é"
    assert ("stderr", "apart\n") in told


async def test_harbor_files(harbor: Any, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "tool").write_text("#!/bin/sh\necho works\n")
    (source / "deep" / "tool").chmod(0o755)
    (source / "link").symlink_to("deep/tool")
    await harbor.upload_dir(source, "/up/here")
    await harbor.upload_file(source / "deep" / "tool", "/up/one")
    assert (await harbor.exec("/up/here/link; /up/one; stat -c %u /up/here/deep/tool")).stdout == "works\nworks\n0\n"
    await harbor.exec("mkfifo /up/here/pipe; rm /up/here/pipe; echo 1 > /logs/verifier/reward.txt", user="nobody")
    await harbor.download_dir("/up/here", tmp_path / "down")
    assert (tmp_path / "down/deep/tool").stat().st_mode & 0o111
    await harbor.download_file("/logs/verifier/reward.txt", tmp_path / "made" / "reward")
    assert (tmp_path / "made" / "reward").read_text() == "1\n"
    await harbor.exec("ln -sf /etc/passwd /logs/verifier/reward.txt")
    with pytest.raises(OSError, match="symlink"):
        await harbor.download_file("/logs/verifier/reward.txt", tmp_path / "linked")
    with pytest.raises(RuntimeError, match="failed with"):
        await harbor.download_dir("/missing", tmp_path / "missing")


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("exec sleep 600", "failed with 124"),
        ("head -c 5000 /dev/zero", "more than 4000 bytes"),
        ("exit 1", "failed with 1"),
    ],
)
async def test_harbor_copies_by_a_program_of_the_agent(
    harbor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, reason: str
) -> None:
    module = harbor.upload_file.__globals__
    monkeypatch.setitem(module, "_COPY_PATIENCE", 1.0)
    monkeypatch.setitem(module, "_MOST_ARCHIVE", 4000)
    script = f"mkdir /opt/bin; (echo '#!/bin/sh'; echo '{program}') > /opt/bin/tar; chmod 755 /opt/bin/tar"
    assert (await harbor.exec(script)).return_code == 0
    with pytest.raises(RuntimeError, match=reason):
        await harbor.download_dir("/logs/verifier", tmp_path / "down")
    assert not (tmp_path / "down").exists()


async def test_harbor_refusals(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plugin = install_harbor(monkeypatch)
    (tmp_path / "trial").mkdir()
    mounts = [{"type": "bind", "source": str(tmp_path / "trial"), "target": "/logs"}]
    plugin.OrsEnvironment(tmp_path, docker_image="host", mounts=mounts)
    for mount in ({"type": "bind", "source": "/srv", "target": "/srv"}, {"type": "volume", "read_only": True}):
        with pytest.raises(ValueError, match="read-only"):
            plugin.OrsEnvironment(tmp_path, docker_image="host", mounts=[mount])
    (tmp_path / "Dockerfile").write_text("FROM no-such-image\n")
    with pytest.raises(RunnerError, match="no-such-image"):
        await plugin.OrsEnvironment(tmp_path).start(False)
    (tmp_path / "docker-compose.yaml").write_text("services: {}")
    with pytest.raises(ValueError, match="compose"):
        plugin.OrsEnvironment(tmp_path)


# ── Inspect ──


async def test_inspect(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = install_inspect(monkeypatch)
    config = plugin.OrsSandboxConfig(disk_mb=64)
    assert plugin.OrsSandboxEnvironment.config_deserialize(config.model_dump()) == config
    sandboxes = await plugin.OrsSandboxEnvironment.sample_init("task", config, {})
    sandbox = sandboxes["default"]
    assert (await sandbox.exec(["cat"], input="é")).stdout == "é"
    assert (await sandbox.exec(["pwd"], cwd="tmp")).stdout == "/tmp\n"
    assert (await sandbox.exec(["no-such-program"])).returncode == 127
    with pytest.raises(TimeoutError):
        await sandbox.exec(["sleep", "60"], timeout=1)
    with pytest.raises(PermissionError):
        await sandbox.exec(["/etc/passwd"])
    with pytest.raises(RunnerError):
        await sandbox.exec(["head", "-c", "1001", "/dev/zero"])
    await sandbox.write_file("made/file", "content\r\n")
    await sandbox.exec(["ln", "-s", "file", "/made/link"])
    assert await sandbox.read_file("made/link") == "content\r\n"
    await sandbox.write_file("made/link", b"\xff" * 1000)
    assert await sandbox.read_file("made/file", text=False) == b"\xff" * 1000
    for path, error in (("nothing", FileNotFoundError), ("/etc", IsADirectoryError), ("/etc/passwd", RunnerError)):
        await sandbox.exec(["sh", "-c", "head -c 1001 /dev/zero >> /etc/passwd"])
        with pytest.raises(error):
            await sandbox.read_file(path)
    await plugin.OrsSandboxEnvironment.sample_cleanup("task", config, sandboxes, False)
    with pytest.raises(RunnerError):
        await sandbox.exec(["true"])
    with pytest.raises(ValueError, match="compose"):
        await plugin.OrsSandboxEnvironment.sample_init("task", "compose.yaml", {})


# ── verifiers ──


def docker_config(**more: Any) -> Any:
    defaults: dict[str, Any] = {"image": "host", "workdir": None, "cpu": None, "memory": None, "disk": 0.1, "gpu": None}
    values = defaults | {"allow": ["*"], "block": list[str](), "network_restricted": False} | more
    return SimpleNamespace(**values, model_dump=lambda: values)


async def test_verifiers(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = install_verifiers(monkeypatch)
    runtime = plugin.OrsRuntime(docker_config())
    with pytest.raises(RunnerError):
        await runtime.run(["true"], {})
    await runtime.start()
    found = await runtime.run(["sh", "-c", "pwd; echo $TASK $MORE"], {"MORE": "m"})
    assert (found.stdout, found.exit_code) == ("/app\nt m\n", 0)
    await runtime.write("deep/-file", b"\0\xff")
    assert await runtime._read("deep/-file") == b"\0\xff"
    assert await runtime._read("/app/deep/-file", max_bytes=1) == b"\0"
    with pytest.raises(RunnerError, match="No such file"):
        await runtime._read("nothing")
    await runtime.run_background(["sh", "-c", "echo 'in the' log; exec sleep 60"], {}, "log")
    waiting = "until [ -s log ]; do sleep 0.1; done; cat log"
    assert (await runtime.run(["sh", "-c", waiting], {})).stdout == "in the log\n"
    runtime.user = "nobody"
    assert (await runtime.run(["id", "-un"], {})).stdout == "nobody\n"
    with pytest.raises(RunnerError, match="Permission denied"):
        await runtime.write("/etc/new", b"")
    for refused in (lambda: runtime.host_url("http://127.0.0.1:1"),):
        with pytest.raises(RunnerError, match="cannot be reached"):
            refused()
    await runtime.teardown()
    for config in ({"gpu": "A100"}, {"allow": ["example.com"], "network_restricted": True}):
        with pytest.raises(RunnerError):
            await plugin.OrsRuntime(docker_config(**config)).start()
    plugin.use()
    assert plugin._runtimes.DockerRuntime is plugin.OrsRuntime


async def test_the_runtime_ends_with_its_loop() -> None:
    """``asyncio.run`` cancels the task that has it: no process of a container is left."""

    async def start() -> int:
        shared = await SharedRuntime.of_this_loop()
        container = await shared.open(await shared.image("host"), ContainerSettings(disk=64 * 2**20))
        await container.run("sleep 98761 & echo")
        return sleeping()

    def sleeping() -> int:
        return len(processes(lambda arguments: b"98761" in arguments))

    assert await asyncio.to_thread(lambda: asyncio.run(start())) == 1
    assert sleeping() == 0
