"""The sandbox service over HTTP: creation, commands, files, networks, and faults of every connection."""

import asyncio
import base64
import gc
import hashlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from ors_containers import Container
from ors_containers.runtimes.containers.namespace_container import NamespaceContainer

from ors_server.sandboxes import SandboxService
from tests.server.protocol.conftest import Serve
from tests.server.sandbox_service.conftest import Sandboxes, error_of, settle
from tests.support.environments import Echo
from tests.support.events import Reply, parse_events

GONE = "Sandbox deleted"


async def test_a_command(sandboxes: Sandboxes) -> None:
    sid = await sandboxes.open()
    result = sandboxes.result(await sandboxes.run(sid, "echo out; echo err >&2; exit 3"))
    assert result == {"return_code": 3, "output": "out\nerr\n", "timed_out": False}
    result = sandboxes.result(await sandboxes.run(sid, "echo early; sleep 30", timeout_s=0.5))
    assert result == {"return_code": 124, "output": "early\n", "timed_out": True}
    for unlimited in (None, 0):
        assert await sandboxes.output(sid, "sleep 0.3; echo slept", timeout_s=unlimited) == "slept"
    assert await sandboxes.output(sid, "printf '\\xf0\\x9f'; echo", max_bytes=0) == ""


async def test_variables_and_size(sandboxes: Sandboxes) -> None:
    sid = await sandboxes.open(env={"KEY": "a b"}, machine_size="0.5:0.5")
    assert await sandboxes.output(sid, 'echo "$KEY"') == "a b"


async def test_a_cut_before_the_task_id_runs_a_command_once(sandboxes: Sandboxes) -> None:
    sid = await sandboxes.open()
    command = "echo x >> /tmp/count; sleep 0.5; echo done"
    body = {
        "cmd": command,
        "timeout_s": 30,
        "max_bytes": 100,
        "shell": "/bin/bash",
    }
    async with sandboxes.client.stream("/run", body, sid, stuck=True):
        await settle()
    assert await sandboxes.output(sid, command, max_bytes=100) == "done"
    assert await sandboxes.output(sid, "wc -l < /tmp/count") == "1"


async def test_a_cut_after_the_task_id_runs_a_command_once(sandboxes: Sandboxes) -> None:
    sid = await sandboxes.open()
    async with sandboxes.client.stream("/run", {"cmd": "echo x >> /tmp/count; sleep 0.5; echo done"}, sid) as stream:
        event = await stream.event()
        assert event.name == "task_id"
    for _ in range(2):
        assert await sandboxes.output(sid, "echo other; echo y >> /tmp/count", task_id=event.data) == "done"
    assert await sandboxes.output(sid, "wc -l < /tmp/count") == "1"
    assert await sandboxes.output(sid, "echo once more") == "once more"


async def test_an_unknown_task_id_starts_nothing(sandboxes: Sandboxes) -> None:
    sid, other = await sandboxes.open(), await sandboxes.open()
    task_id = Reply(parse_events((await sandboxes.run(other, "true")).content)).task_id
    for unknown in ("0" * 32, task_id):
        text = error_of(await sandboxes.run(sid, "touch /tmp/ran", task_id=unknown))
        assert "unknown task_id" not in text  # at these words the client starts the command again
    assert await sandboxes.output(sid, "ls /tmp") == ""


async def test_a_long_command(sandboxes: Sandboxes) -> None:
    sid = await sandboxes.open()
    content = base64.b64encode(os.urandom(10_400_000)).decode()
    assert len(content) > 13_800_000
    await sandboxes.output(sid, f"echo '{content}' | base64 -d > /tmp/f")
    response = await sandboxes.file(sid, "stat_file", path="/tmp/f", sha256=1)
    assert response.json() == {"size": 10_400_000, "sha256": hashlib.sha256(base64.b64decode(content)).hexdigest()}
    assert (await sandboxes.run(sid, "x" * 17_000_000)).status_code == 413


@pytest.mark.long
async def test_the_head_of_a_gigabyte(sandboxes: Sandboxes) -> None:
    sid = await sandboxes.open()
    command = "echo head; head -c 1000000000 /dev/zero | tr '\\0' x; echo $? > /tmp/status"
    result = sandboxes.result(await sandboxes.run(sid, command, timeout_s=60))
    assert (result["return_code"], len(result["output"]), result["output"][:5]) == (0, 50_001, "head\n")
    assert await sandboxes.output(sid, "cat /tmp/status") == "0"  # its writes did not fail
    gc.collect()


async def test_output_without_a_limit_is_whole_or_an_error(service: SandboxService, serve: Serve) -> None:
    sandboxes = Sandboxes(serve(Echo, sandbox_service=True, max_output=40_000))
    sid = await sandboxes.open()
    assert len(await sandboxes.output(sid, "head -c 30000 /dev/zero | tr '\\0' x", max_bytes=None)) == 30_000
    for limit in (None, 35_000):
        text = error_of(await sandboxes.run(sid, "head -c 30001 /dev/zero", max_bytes=limit))
        assert "ended with status 0" in text
        assert "ORS_MAX_OUTPUT" in text
    assert len(await sandboxes.output(sid, "head -c 90000 /dev/zero | tr '\\0' x", max_bytes=10)) == 10


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"machine_size": "nvidia-l4"}, "no GPU"),
        ({"machine_size": "huge"}, "CPUS:GIGABYTES"),
        ({"machine_size": None}, "machine_size"),
        ({"machine_size": "256:9999"}, "256:9999 is more than this machine has"),
        ({"machine_size": "1:90000"}, "more than this machine has"),
        ({"machine_size": "999:0.1"}, "more than this machine has"),
        ({"machine_size": "\u0661:\u0661"}, "CPUS:GIGABYTES"),
        ({"machine_size": "1:\uff11"}, "CPUS:GIGABYTES"),
        ({"machine_size": "0:1"}, "CPUS:GIGABYTES"),
        ({"machine_size": "1:1\n"}, "CPUS:GIGABYTES"),
        ({"image": ""}, "image"),
        ({"disk_limit": "1Gi"}, "does not know the field 'disk_limit'"),
        ({"bucket_config": {"mount_path": "/data", "read_only": False}}, "bucket_config.read_only"),
        ({"sidecars": [{"name": "a", "image": "b", "gpu": 1}]}, "does not know the field 'sidecars.0.gpu'"),
        ({"block_network": True, "network": {"rules": []}}, "mutually exclusive"),
    ],
)
async def test_what_cannot_be_had_is_refused_by_name(serve: Serve, fields: dict[str, Any], text: str) -> None:
    response = await Sandboxes(serve(Echo, sandbox_service=True)).create(**fields)
    assert response.status_code == 400
    assert text in error_of(response)


async def test_unset_fields_of_newer_clients(sandboxes: Sandboxes) -> None:
    await sandboxes.open(labels=None, gpu=False, volumes=[])


async def test_an_image_that_does_not_exist(sandboxes: Sandboxes) -> None:
    response = await sandboxes.create(image="nobody/nothing:1")
    task_id = Reply(parse_events(response.content)).task_id
    text = error_of(response)
    assert "nobody/nothing:1" in text
    assert "ors-server image import" in text
    again = await sandboxes.create(image="nobody/nothing:1", task_id=task_id)
    assert error_of(again) == text
    assert (await sandboxes.run(task_id, "true")).status_code == 410


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"bucket_config": {"mount_path": "/proc/x"}}, "Nothing can be mounted"),
        ({"bucket_config": {"mount_path": "/usr/bin/"}}, "Nothing can be mounted at /usr/bin"),
        ({"host_aliases": [{"ip": "nowhere", "hostnames": ["a"]}]}, "'nowhere' is not an address"),
        ({"bucket_config": {"mount_path": "/d", "only_dir": "missing"}}, "is not a folder"),
        ({"bucket_config": {"mount_path": "/d", "only_dir": "../other"}}, "not a path below"),
    ],
)
async def test_a_creation_that_fails(sandboxes: Sandboxes, fields: dict[str, Any], text: str) -> None:
    assert text in error_of(await sandboxes.create(**fields))


async def test_a_bucket_is_the_data_folder_of_its_environment(sandboxes: Sandboxes, tmp_path: Path) -> None:
    folder = tmp_path / "files" / "name"
    (folder / "inputs").mkdir(parents=True)
    (folder / "answers").mkdir()
    (folder / "inputs/task").write_text("the task")
    (folder / "answers/task").write_text("the answer")
    (folder / "link").symlink_to("answers")
    sid = await sandboxes.open(bucket_config={"mount_path": "/tmp/data/", "only_dir": "inputs"})
    assert await sandboxes.output(
        sid, "cat /tmp/data/task; ls /tmp/data /tmp/data/..; touch /tmp/data/x 2>&1 || true"
    ) == ("the task/tmp/data:\ntask\n\n/tmp/data/..:\ndata\ntouch: cannot touch '/tmp/data/x': Read-only file system")
    assert "has a link on its way" in error_of(
        await sandboxes.create(bucket_config={"mount_path": "/d", "only_dir": "link"})
    )
    sid = await sandboxes.open(environment="owner/Empty", bucket_config={"mount_path": "/d"})
    assert await sandboxes.output(sid, "ls /d") == ""


async def test_a_sidecar_and_an_alias(sandboxes: Sandboxes) -> None:
    server = "import http.server; http.server.test(http.server.SimpleHTTPRequestHandler, port=8000, bind='127.0.0.1')"
    sid = await sandboxes.open(
        sidecars=[{"name": "web", "image": "host", "command": ["/usr/bin/python3"], "args": ["-c", server]}],
        host_aliases=[{"ip": "127.0.0.1", "hostnames": ["web.local"]}],
    )
    fetch = "import urllib.request; print(urllib.request.urlopen('http://web.local:8000/').status)"
    command = f'for n in 1 2 3 4 5 6 7 8 9 10; do python3 -c "{fetch}" 2>/dev/null && exit; sleep 0.5; done; exit 1'
    assert await sandboxes.output(sid, command) == "200"
    missing = await sandboxes.create(sidecars=[{"name": "web", "image": "host"}])
    assert "The sidecar web has no command" in error_of(missing)


async def test_deletion_while_it_is_created(
    sandboxes: Sandboxes, service: SandboxService, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Container] = []
    close = NamespaceContainer.close

    async def slow(self: SandboxService, *arguments: Any) -> Container:
        container = await service.runtime.open_container(*arguments)
        opened.append(container)
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            await close(container)  # pyright: ignore[reportArgumentType] - of this runtime
            raise
        return container

    monkeypatch.setattr(SandboxService, "open_container", slow)
    body = {"environment": "owner/Name", "image": "host", "machine_size": "1:1"}
    async with sandboxes.client.stream("/create_sandbox", body, "") as stream:
        sid = (await stream.event()).data
        while not opened:
            await settle()
        assert (await sandboxes.client.post("/delete_session", None, sid)).status_code == 200
        assert (await stream.event()) == ("error", GONE)
    with pytest.raises(Exception, match=r"stopped|closed|not running"):
        await opened[0].run("true")
    assert (await sandboxes.create(task_id=sid)).status_code == 410


async def test_a_cut_creation_is_resumed(sandboxes: Sandboxes) -> None:
    body = {"environment": "owner/Name", "image": "host", "machine_size": "1:1"}
    async with sandboxes.client.stream("/create_sandbox", body, "") as stream:
        sid = (await stream.event()).data
    reply = Reply(parse_events((await sandboxes.create(task_id=sid)).content))
    assert (reply.task_id, reply.result) == (sid, {"sid": sid})
    assert await sandboxes.output(sid, "echo here") == "here"


async def test_the_end(sandboxes: Sandboxes) -> None:
    sid = await sandboxes.open()
    async with sandboxes.client.stream("/run", {"cmd": "sleep 60"}, sid) as stream:
        task_id = (await stream.event()).data
        for path in ("/ping", "http://server//ping"):  # a base URL that ends in a slash
            assert (await sandboxes.client.post(path, None, sid)).status_code == 200
        assert (await sandboxes.client.post("/delete_session", None, sid)).status_code == 200
        assert await stream.event() == ("error", GONE)
    for body in ({"cmd": "true"}, {"cmd": "sleep 60", "task_id": task_id}):
        response = await sandboxes.client.post("/run", body, sid)
        assert (response.status_code, error_of(response)) == (410, GONE)
    assert (await sandboxes.client.post("/ping", None, sid)).status_code == 410
    assert (await sandboxes.file(sid, "stat_file", path="/x")).status_code == 410
    assert (await sandboxes.client.post("/delete_session", None, sid)).status_code == 200
    assert (await sandboxes.run("of another server", "true")).status_code == 410
    assert (await sandboxes.client.post("/run", {"cmd": "true"})).status_code == 400


@pytest.mark.long
async def test_silence_ends_a_sandbox(service: SandboxService, serve: Serve) -> None:
    sandboxes = Sandboxes(serve(Echo, sandbox_service=True, sandbox_ttl=1.0))
    sid = await sandboxes.open()
    assert await sandboxes.output(sid, "sleep 2.5; echo kept") == "kept"  # a connected client needs no ping
    for _ in range(4):
        await asyncio.sleep(0.5)
        assert (await sandboxes.client.post("/ping", None, sid)).status_code == 200
    await asyncio.sleep(2)
    response = await sandboxes.run(sid, "true")
    assert response.status_code == 410
    assert "ORS_SANDBOX_TTL" in error_of(response)


async def test_the_death_of_a_sandbox(sandboxes: Sandboxes, service: SandboxService) -> None:
    sid = await sandboxes.open()
    container = next(iter(getattr(service.runtime, "_state").containers.values()))  # noqa: B009 - only the test kills it
    async with sandboxes.client.stream("/run", {"cmd": "sleep 60"}, sid) as stream:
        task_id = (await stream.event()).data
        signal.pidfd_send_signal(getattr(container, "_parts")[0].process_1, signal.SIGKILL)  # noqa: B009
        assert "InfrastructureError" in (await stream.event()).data
    for fields in ({}, {"task_id": task_id}):
        response = await sandboxes.run(sid, "true", **fields)
        assert response.status_code == 410
        assert "lost" in error_of(response)
    idle = await sandboxes.open()
    container = next(iter(getattr(service.runtime, "_state").containers.values()))  # noqa: B009
    part = getattr(container, "_parts")[0]  # noqa: B009
    signal.pidfd_send_signal(part.process_1, signal.SIGKILL)
    await asyncio.wait([part.monitor])  # until its death is noticed
    assert (await sandboxes.run(idle, "true")).status_code == 410


async def test_limits(service: SandboxService, serve: Serve) -> None:
    sandboxes = Sandboxes(serve(Echo, sandbox_service=True, max_sandboxes=1, max_session_calls=1))
    sid = await sandboxes.open()
    response = await sandboxes.create()
    assert (response.status_code, response.headers["x-backend-state"]) == (503, "starting")
    async with sandboxes.client.stream("/run", {"cmd": "sleep 60"}, sid) as stream:
        await stream.event()
        assert (await sandboxes.run(sid, "true")).status_code == 503
    await sandboxes.client.post("/delete_session", None, sid)
    await sandboxes.open()


DENY = {"rules": [{"action": "deny", "host": "*.org"}]}
ALLOW = {"rules": [{"action": "allow", "host": "example.org", "path": "/simple/*", "methods": ["GET"]}]}


async def test_network_policies(sandboxes: Sandboxes) -> None:
    sid = await sandboxes.open(network=ALLOW)
    assert await sandboxes.output(sid, "cat /proc/net/route | wc -l") == "1"  # no route
    assert (await sandboxes.client.post("/set_network", DENY, sid)).status_code == 200
    for policy, text in (
        (ALLOW, "no filter of requests for the rule that allows example.org"),
        ({"presets": ["pypi"]}, "no filter of requests for the preset pypi"),
        ({"enforce": False}, "without a network"),
        ({"rules": [{"action": "perhaps", "host": "x"}]}, "rules.0.action"),
    ):
        response = await sandboxes.client.post("/set_network", policy, sid)
        assert response.status_code == 400
        assert text in error_of(response)
    response = await sandboxes.client.post("/set_network", DENY, await sandboxes.open())
    assert (response.status_code, "without a network policy" in error_of(response)) == (400, True)


async def test_files(sandboxes: Sandboxes) -> None:
    sid = await sandboxes.open()
    for _ in range(2):  # each request may come twice
        for offset, piece in ((0, b"first"), (5, b"second"), (5, b"second")):
            response = await sandboxes.file(sid, "write_file", piece, path="/new/dir/f", offset=offset, mkdirs=1)
            assert (response.status_code, response.json()) == (200, {"status": "ok"})
    assert (await sandboxes.file(sid, "stat_file", path="/new/dir/f")).status_code == 404
    wrong = await sandboxes.file(sid, "write_file", path="/new/dir/f", commit=1, size=12)
    assert wrong.status_code == 409
    digest = hashlib.sha256(b"firstsecond").hexdigest()
    for _ in range(2):
        response = await sandboxes.file(sid, "write_file", path="/new/dir/f", commit=1, size=11)
        assert response.json() == {"sha256": digest}
    # The same name, but not the same file: its client would take the upload for done.
    assert (await sandboxes.file(sid, "write_file", path="/new/dir/f", commit=1, size=12)).status_code == 404
    assert await sandboxes.output(sid, "ls -A /new/dir; cat /new/dir/f") == "f\nfirstsecond"
    response = await sandboxes.file(sid, "read_file", path="/new/dir/f", offset=5, length=3)
    assert (response.content, response.headers["x-file-size"]) == (b"sec", "11")
    assert (await sandboxes.file(sid, "read_file", path="/new/dir/f", offset=11, length=3)).status_code == 416
    await sandboxes.file(sid, "write_file", path="/empty", offset=0, mkdirs=1)
    assert (await sandboxes.file(sid, "write_file", path="/empty", commit=1, size=0)).status_code == 200
    assert (await sandboxes.file(sid, "read_file", path="/empty", offset=0, length=10)).content == b""


async def test_files_that_are_refused(sandboxes: Sandboxes) -> None:
    sid = await sandboxes.open()
    await sandboxes.output(sid, "ln -s /etc/passwd /link; mkdir /folder; mkfifo /pipe")
    for name in ("stat_file", "read_file"):
        response = await sandboxes.file(sid, name, path="/link")
        assert (response.status_code, "symlink" in error_of(response)) == (400, True)
        for path, status in (("/folder", 400), ("/pipe", 400), ("/none", 404), ("relative", 400), ("/a/../b", 400)):
            response = await sandboxes.file(sid, name, path=path)
            assert (response.status_code, type(error_of(response))) == (status, str), path
        assert (await sandboxes.file(sid, name)).status_code == 400
    queries: list[dict[str, Any]] = [{"offset": -1}, {"offset": "x"}, {"length": 10**9}]
    for query in queries:
        assert (await sandboxes.file(sid, "read_file", path="/etc/passwd", **query)).status_code == 400
    assert (await sandboxes.file(sid, "write_file", b"x", path="/no/dir/f", offset=0)).status_code == 404
    assert (await sandboxes.file(sid, "write_file", path="/f", commit=1, size=0)).status_code == 404
