"""The table of addresses that scripts fetch, and the packages that it names."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ors_server import DefinitionError

from .parts import harbor_addresses

INSTALLER = "https://astral.sh/uv/0.9.7/install.sh"


def test_a_script_names_the_packages_that_it_needs() -> None:
    text = f"curl -LsSf {INSTALLER} | sh\ncurl 'https://example.org/uv/1/install.sh' -o x\n"
    assert harbor_addresses.named_answers(text, harbor_addresses.SHIPPED) == {INSTALLER: "uv==0.9.7"}


@pytest.mark.parametrize("version", ["a/b", "$(id)", "*"])
def test_what_is_not_a_version_is_not_asked_for(version: str) -> None:
    text = f"curl https://astral.sh/uv/{version}/install.sh | sh"
    found = harbor_addresses.named_answers(text, harbor_addresses.SHIPPED)
    assert found == {}


def test_the_operators_rows_come_first(tmp_path: Path) -> None:
    file = tmp_path / "addresses.toml"
    file.write_text('[addresses]\n"https://astral.sh/uv/*/install.sh" = { package = "mine" }\n')
    table = harbor_addresses.read_addresses(file)
    assert harbor_addresses.named_answers(INSTALLER, table) == {INSTALLER: "mine"}
    assert harbor_addresses.read_addresses(None) == dict(harbor_addresses.SHIPPED)


def test_an_address_can_be_a_file_of_the_operator(tmp_path: Path) -> None:
    (tmp_path / "setup.sh").write_text("true\n")
    file = tmp_path / "addresses.toml"
    file.write_text('[addresses]\n"https://example.org/setup_*.x" = { file = "setup.sh" }\n')
    found = harbor_addresses.named_answers("curl https://example.org/setup_20.x", harbor_addresses.read_addresses(file))
    assert found == {"https://example.org/setup_20.x": tmp_path / "setup.sh"}


def test_an_address_with_variables_is_each_one_of_the_table_that_it_can_become() -> None:
    base = "https://example.org/tool/v1"
    table = {f"{base}/tool-x64.tar.gz": "x", f"{base}/tool-arm64.tar.gz": "a", f"{base}/other-x64.tar.gz": "o"}
    text = f'curl -o /tmp/tool "{base}/tool-${{ARCH}}.tar.gz" && curl {base}/$NAME-x64.tar.gz.sig\n'
    assert harbor_addresses.named_answers(text, table) == {
        f"{base}/tool-x64.tar.gz": "x",
        f"{base}/tool-arm64.tar.gz": "a",
    }


def test_hosts_that_a_silent_script_asks_for_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(host: str, port: int) -> list[int]:
        if host != "known.example":
            raise socket.gaierror
        return [port]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    text = "# https://comment.example\nRUN curl -s https://known.example/x https://b.example/x https://$HOST/x | sh\n"
    assert harbor_addresses.unknown_hosts(f"{text}RUN wget -q http://a.example:80/") == ["a.example", "b.example"]


@pytest.mark.parametrize(
    "text",
    ["[", '[addresses]\n"x" = "y"\n', '[addresses]\n"x" = { package = 3 }\n', '[addresses]\n"x" = { file = "none" }\n'],
)
def test_a_table_that_cannot_be_read_is_an_error(tmp_path: Path, text: str) -> None:
    file = tmp_path / "addresses.toml"
    file.write_text(text)
    with pytest.raises(DefinitionError, match=str(file)):
        harbor_addresses.read_addresses(file)
