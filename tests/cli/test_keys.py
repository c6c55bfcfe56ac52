"""``ors-server keys``, and the refusal to serve where others reach a server without keys."""

import json
from pathlib import Path

import pytest
from ors_cli.application import application
from typer.testing import CliRunner

from ors_server import Server, Settings
from ors_server.keys.errors import KeysError
from ors_server.keys.exposure import add_key, is_loopback, refuse_open_address
from ors_server.keys.file import keys_file
from ors_server.keys.keys import Keys
from tests.support.environments import Echo


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Name an empty data directory to the commands."""
    monkeypatch.setenv("ORS_DATA_DIR", str(tmp_path))
    return tmp_path


def run(*arguments: str) -> tuple[int, str, str]:
    """Run a command; return its status, standard output and standard error."""
    result = CliRunner().invoke(application, ["keys", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def test_add_list_revoke(data_dir: Path) -> None:
    status, secret, hint = run("add", "team-a", "--sessions", "8", "--rate", "2.5")
    assert status == 0
    assert secret.startswith("ors_")
    assert secret.count("\n") == 1
    assert secret.strip() not in hint
    keys = Keys(data_dir / "keys.json")
    found = keys.find(secret.strip())
    assert found is not None
    assert found.limits.model_dump(exclude_none=True) == {"sessions": 8, "rate": 2.5}
    run("add", "b", "--calls", "1", "--sandboxes", "3", "--sandbox-size", "2:4")
    assert run("add", "c", "--sandbox-size", "many")[0] == 2
    _, listed, _ = run("list")
    assert "team-a" in listed
    assert "2.5" in listed
    assert "2:4" in listed
    _, listed, _ = run("list", "--json")
    assert [row["name"] for row in json.loads(listed)] == ["team-a", "b"]
    assert secret.strip() not in listed
    status, out, said = run("revoke", "team-a", "b")
    assert (status, out) == (0, "")
    assert "No key is left" in said
    assert run("list") == (
        0,
        "",
        f"There is no key in {data_dir}/keys.json. All were revoked: a server that reads it lets no client in.\n",
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("add", ""),
        ("add", "a b"),
        ("add", "-x"),
        ("add", "ü"),
        ("add", "a" * 65),
        ("add", "../x"),
        ("add", "x", "--sessions", "0"),
        ("add", "x", "--rate", "nan"),
        ("add", "x", "--rate", "inf"),
        ("add", "x", "--rate", "-1"),
    ],
)
def test_bad_arguments(data_dir: Path, arguments: tuple[str, ...]) -> None:
    status, out, _ = run(*arguments)
    assert (status, out) == (2, "")
    assert not (data_dir / "keys.json").exists()


def test_an_unknown_key_is_not_revoked(data_dir: Path) -> None:
    run("add", "a")
    with pytest.raises(KeysError, match="no key 'b'"):
        run("revoke", "a", "b")
    assert len(Keys(data_dir / "keys.json")) == 1


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("localhost", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.0.2.1", False),
        ("no-such-host.invalid", False),
        ("0", False),
    ],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_an_address_of_others_needs_a_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(data_dir=tmp_path)
    refuse_open_address(settings, ["127.0.0.1"])
    refuse_open_address(settings, [])
    with pytest.raises(KeysError, match="ors-server keys add"):
        refuse_open_address(settings, ["127.0.0.1", "0.0.0.0"])
    refuse_open_address(Settings(data_dir=tmp_path, insecure=True), ["0.0.0.0"])
    with pytest.raises(KeysError):  # each gateway would make another one
        refuse_open_address(Settings(data_dir=tmp_path, make_key=True), ["0.0.0.0"], may_make=False)
    assert not capsys.readouterr().err
    refuse_open_address(Settings(data_dir=tmp_path, make_key=True), ["0.0.0.0"])
    said = capsys.readouterr().err
    secret = said.partition("ORS_API_KEY=")[2].split()[0]
    assert Keys(keys_file(settings)).find(secret) is not None
    # Once, and it is not needed any more.
    refuse_open_address(Settings(data_dir=tmp_path, make_key=True), ["0.0.0.0"])
    refuse_open_address(settings, ["0.0.0.0"])
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ("serve", "echo", "--host", "0.0.0.0"),
        ("serve", "echo", "--host", "0.0.0.0", "--workers", "2"),
        ("serve", "echo", "--listen", "tcp:0.0.0.0:0"),
        ("gateway", "--host", "0.0.0.0"),
        ("node", "--join", "http://192.0.2.1:8080", "echo"),
        ("node", "--join", "192.0.2.1:8080", "echo"),
        ("node", "--join", "http://127.0.0.1:8080", "--advertise", "192.0.2.1", "echo"),
        ("host", ".", "--host", "0.0.0.0"),
    ],
)
def test_commands_refuse(data_dir: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> None:
    monkeypatch.setenv("ORS_CLUSTER_KEY", "0123456789abcdef")
    result = CliRunner().invoke(application, list(command))
    assert isinstance(result.exception, KeysError)
    assert "--insecure" in result.exception.remedy


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_server_run_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture, host: str, warned: bool) -> None:
    """The programs of both SDKs' users call ``run()`` on every interface: it goes on, and says so."""
    settings = Settings(data_dir=tmp_path, log_level="warning")
    Server([Echo], settings=settings)._warn_if_open(host)  # pyright: ignore[reportPrivateUsage]
    assert bool(caplog.records) is warned
    caplog.clear()
    add_key(settings, "me")
    Server([Echo], settings=settings)._warn_if_open(host)  # pyright: ignore[reportPrivateUsage]
    assert not caplog.records
