"""Name lookups of a container without a network, which are answered at once."""

from __future__ import annotations

import struct

import pytest
from ors_containers import ContainerSettings
from ors_containers.runtimes.containers.refused_names import refusal
from ors_containers.runtimes.namespace_runtime import NamespaceRuntime

_QUESTION = b"\x03www\x07example\x00" + b"\x00\x01\x00\x01"

_ASK_DNS = "echo hosts: files dns"


def message(flags: int = 0x0100, questions: int = 1, rest: bytes = _QUESTION) -> bytes:
    return struct.pack(">HHHHHH", 77, flags, questions, 0, 0, 1) + rest


def test_the_answer_repeats_the_question() -> None:
    # What comes after the question, as the options of EDNS, is not repeated.
    assert refusal(message(rest=_QUESTION + b"options")) == struct.pack(">HHHHHH", 77, 0x8183, 1, 0, 0, 0) + _QUESTION


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        message(rest=b""),
        message(flags=0x8100),  # an answer: two servers would never end
        message(questions=2),
        message(rest=_QUESTION[:-1]),
        message(rest=b"\x3fshort\x00\x00\x01\x00\x01"),
        message(rest=_QUESTION + b"x" * 600),
    ],
)
def test_what_is_not_a_question_has_no_answer(bad: bytes) -> None:
    assert refusal(bad) is None


@pytest.mark.asyncio(loop_scope="module")
async def test_a_container_is_told_that_no_host_exists(runtime: NamespaceRuntime) -> None:
    async with await runtime.open_container(runtime.host_image(), ContainerSettings(refuse_names=True)) as container:
        assert (await container.run(f"{_ASK_DNS} >/etc/nsswitch.conf")).exit_status == 0
        look_up = "import socket; socket.getaddrinfo('www.example.org', 443)"
        result = await container.execute(["/usr/bin/python3", "-c", look_up], timeout=30)
        # Without an answer it is -3, a temporary failure.
        assert b"[Errno -2] Name or service not known" in result.stderr
        assert (await container.run("cat /etc/resolv.conf")).text == "nameserver 127.0.0.11\n"
        # Its own names work.
        assert (await container.run("getent hosts localhost")).exit_status == 0


@pytest.mark.asyncio(loop_scope="module")
async def test_a_flood_of_questions_is_answered_in_part(runtime: NamespaceRuntime) -> None:
    flood = (
        "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(('127.0.0.11', 53))\n"
        f"for _ in range(20000): s.send({message()!r})\n"
        "s.settimeout(20); print(s.recv(512)[2:4].hex())"
    )
    async with await runtime.open_container(runtime.host_image(), ContainerSettings(refuse_names=True)) as container:
        result = await container.execute(["/usr/bin/python3", "-c", flood], timeout=60)
        assert (result.stdout, result.stderr) == (b"8183\n", b"")
        assert (await container.run("getent -s dns hosts www.example.org")).exit_status == 2
