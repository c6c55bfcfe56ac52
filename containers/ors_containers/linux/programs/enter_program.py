"""The program that executes an image's program: machine code that takes the place of the launcher's Python first.

While a process executes a program, the kernel follows ``/proc/self/exe`` to the program that it executed before. An
image's shell that is a link to that path, or a script of it, would be this server's interpreter: root inside could read
the file, and where the server is an ordinary user also chmod it, or write it when no process executes it any longer
(as in CVE-2019-5736). Behind this program the path leads to 200 bytes in memory that belong to one command alone.

Its arguments are its name and the arguments of the program, the first of which is the program's path. An errno is
written to ``REPORT_AT`` as one byte; the descriptor is closed when the program runs.
"""

from __future__ import annotations

import struct

from ors_containers.linux.programs.pause_program import elf_file

__all__ = ["REPORT_AT", "enter_program"]

REPORT_AT = 40
_FAILED = 70


def _x86_64() -> bytes:
    def number(register: bytes, value: int) -> bytes:
        return register + struct.pack("<I", value)  # mov r32, imm32

    eax, edi, esi, edx, call = b"\xb8", b"\xbf", b"\xbe", b"\xba", b"\x0f\x05"
    # fcntl(REPORT_AT, F_SETFD, FD_CLOEXEC)
    once = number(eax, 72) + number(edi, REPORT_AT) + number(esi, 2) + number(edx, 1) + call
    # execve(argv[1], argv + 1, environment), with the count of arguments at rsp
    code = b"\x48\x8b\x7c\x24\x10"  # mov rdi, [rsp + 16]
    code += b"\x48\x8d\x74\x24\x10"  # lea rsi, [rsp + 16]
    code += b"\x48\x8b\x04\x24"  # mov rax, [rsp]
    code += b"\x48\x8d\x54\xc4\x10"  # lea rdx, [rsp + 8 * rax + 16]
    code += number(eax, 59) + call
    code += b"\xf7\xd8\x50\x48\x89\xe6"  # neg eax; push rax; mov rsi, rsp
    code += number(eax, 1) + number(edi, REPORT_AT) + number(edx, 1) + call  # write(REPORT_AT, rsp, 1)
    # test eax, eax; jnz: where it is executed again, by an image whose shell leads to it, the descriptor is closed
    once += b"\x85\xc0\x75" + struct.pack("B", len(code))
    return once + code + number(eax, 231) + number(edi, _FAILED) + call  # exit_group


def _aarch64() -> bytes:
    def number(register: int, value: int) -> bytes:
        return struct.pack("<I", 0xD2800000 | value << 5 | register)  # movz

    call = struct.pack("<I", 0xD4000001)  # svc #0
    once = number(8, 25) + number(0, REPORT_AT) + number(1, 2) + number(2, 1) + call  # fcntl
    # ldr x0, [sp, #16]; add x1, sp, #16; ldr x2, [sp]; add x2, x1, x2, lsl #3
    code = struct.pack("<IIII", 0xF9400BE0, 0x910043E1, 0xF94003E2, 0x8B020C22)
    code += number(8, 221) + call  # execve
    code += struct.pack("<III", 0xCB0003E0, 0xF81F0FE0, 0x910003E1)  # neg x0, x0; str x0, [sp, #-16]!; mov x1, sp
    code += number(8, 64) + number(0, REPORT_AT) + number(2, 1) + call  # write
    once += struct.pack("<I", 0xB5000000 | (len(code) // 4 + 1) << 5)  # cbnz x0
    return once + code + number(8, 94) + number(0, _FAILED) + call  # exit_group


_CODE = {"x86_64": _x86_64, "aarch64": _aarch64}


def enter_program(machine: str) -> bytes:
    """Return the ELF file for ``machine``. Raises ``KeyError`` for a machine that is not supported."""
    return elf_file(machine, _CODE[machine]())
