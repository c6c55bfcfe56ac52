"""The program that waits for process 1 of a container: machine code that ends when its child has ended.

A child of the launcher forks process 1 and has to stay as its parent, so that the launcher learns of its end and the
end of the launcher reaches it. A Python process would keep megabytes for that; this program needs 16 KiB.
"""

from __future__ import annotations

import struct

from ors_containers.linux.programs.pause_program import elf_file

__all__ = ["monitor_program"]


def _x86_64() -> bytes:
    def number(register: bytes, value: int) -> bytes:
        return register + struct.pack("<I", value)  # mov r32, imm32

    eax, edi, esi, edx, r10d = b"\xb8", b"\xbf", b"\xbe", b"\xba", b"\x41\xba"
    minus_one = b"\x48\xc7\xc7" + b"\xff" * 4  # mov rdi, -1
    code = number(eax, 61) + minus_one + number(esi, 0)  # wait4(-1, NULL, 0, NULL)
    code += number(edx, 0) + number(r10d, 0) + b"\x0f\x05"
    return code + number(eax, 231) + number(edi, 0) + b"\x0f\x05"  # exit_group(0)


def _aarch64() -> bytes:
    def number(register: int, value: int) -> bytes:
        return struct.pack("<I", 0xD2800000 | value << 5 | register)  # movz

    call = struct.pack("<I", 0xD4000001)  # svc #0
    minus_one = struct.pack("<I", 0x92800000)  # movn x0, 0
    code = number(8, 260) + minus_one + number(1, 0) + number(2, 0) + number(3, 0) + call  # wait4(-1, NULL, 0, NULL)
    return code + number(8, 94) + number(0, 0) + call  # exit_group(0)


_CODE = {"x86_64": _x86_64, "aarch64": _aarch64}


def monitor_program(machine: str) -> bytes:
    """Return the ELF file for ``machine``. Raises ``KeyError`` for a machine that is not supported."""
    return elf_file(machine, _CODE[machine]())
