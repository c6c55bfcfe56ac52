"""The program that is process 1 of a sandbox: 200 bytes of machine code that wait forever.

Process 1 of a pid namespace cannot be killed from inside it, and when it ends the kernel ends every process in the
namespace. A process 1 from the image would be a shell or an interpreter of half a megabyte; this program needs nothing
from the image and 16 KiB. It asks the kernel to reap orphans by itself (SIGCHLD ignored), writes one newline to its
standard output, which tells the launcher that the sandbox is up, and waits forever.

Invariant: it never reads, opens or executes a file, so an agent cannot make it do more than wait.
"""

from __future__ import annotations

import struct

__all__ = ["MACHINES", "elf_file", "pause_program"]

_SIGCHLD = 17
_BASE = 0x400000
_CODE_AT = 64 + 56  # behind the ELF header and its one program header

# struct sigaction as the kernel has it: handler (1 is SIG_IGN), flags, restorer, mask; then the newline.
_DATA = struct.pack("<QQQQ", 1, 0, 0, 0) + b"\n"


def _x86_64() -> bytes:
    def number(register: bytes, value: int) -> bytes:
        return register + struct.pack("<I", value)  # mov r32, imm32

    eax, edi, edx, r10d = b"\xb8", b"\xbf", b"\xba", b"\x41\xba"
    call = b"\x0f\x05"
    rsi_relative = b"\x48\x8d\x35"  # lea rsi, [rip + offset]

    def program(action: int, newline: int) -> bytes:
        code = number(eax, 13) + number(edi, _SIGCHLD)  # rt_sigaction(SIGCHLD, action, NULL, 8)
        code += rsi_relative + struct.pack("<i", action - (len(code) + 7))
        code += number(edx, 0) + number(r10d, 8) + call
        code += number(eax, 1) + number(edi, 1)  # write(1, newline, 1)
        code += rsi_relative + struct.pack("<i", newline - (len(code) + 7))
        code += number(edx, 1) + call
        return code + number(eax, 34) + call + b"\xeb\xf7"  # pause(), and again

    size = len(program(0, 0))
    return program(size, size + 32) + _DATA


def _aarch64() -> bytes:
    def number(register: int, value: int) -> bytes:
        return struct.pack("<I", 0xD2800000 | value << 5 | register)  # movz

    def address(register: int, offset: int) -> bytes:
        return struct.pack("<I", 0x10000000 | (offset & 3) << 29 | ((offset >> 2) & 0x7FFFF) << 5 | register)  # adr

    call = struct.pack("<I", 0xD4000001)  # svc #0

    def program(action: int, newline: int) -> bytes:
        code = number(8, 134) + number(0, _SIGCHLD)  # rt_sigaction(SIGCHLD, action, NULL, 8)
        code += address(1, action - len(code)) + number(2, 0) + number(3, 8) + call
        code += number(8, 64) + number(0, 1)  # write(1, newline, 1)
        code += address(1, newline - len(code)) + number(2, 1) + call
        # ppoll(NULL, 0, NULL, NULL): this architecture has no pause
        code += number(8, 73) + number(0, 0) + number(1, 0) + number(2, 0) + number(3, 0) + call
        return code + struct.pack("<I", 0x14000000 | (-6 & 0x3FFFFFF))  # b, back to loading ppoll's number

    size = len(program(0, 0))
    return program(size, size + 32) + _DATA


#: Machine names as ``platform.machine()`` gives them, with ELF's number of each.
MACHINES = {"x86_64": 62, "aarch64": 183}
_CODE = {"x86_64": _x86_64, "aarch64": _aarch64}


def pause_program(machine: str) -> bytes:
    """Return the ELF file for ``machine``. Raises ``KeyError`` for a machine that is not in ``MACHINES``."""
    return elf_file(machine, _CODE[machine]())


def elf_file(machine: str, code: bytes) -> bytes:
    """Return an executable file that is ``code`` and nothing else."""
    size = _CODE_AT + len(code)
    identification = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)  # 64 bits, little-endian, version 1
    header = identification + struct.pack(
        "<HHIQQQIHHHHHH", 2, MACHINES[machine], 1, _BASE + _CODE_AT, 64, 0, 0, 64, 56, 1, 0, 0, 0
    )
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 0x1000)  # loaded, readable, executable
    return header + segment + code
