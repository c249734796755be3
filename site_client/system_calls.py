"""The system calls that are refused to a program that is shut in, as a filter for the kernel (seccomp).

Namespaces do not part everything. A virtual machine's sockets to its host (AF_VSOCK) lead past a network that is not
there, and io_uring opens sockets unseen. The keys of the daemon's session are those of every process of its user. And
bubblewrap's own process inside, with which all others end, could be taken over by one that traces it.
"""

from __future__ import annotations

import errno
import platform
import struct
from typing import NamedTuple

_FAMILIES = (1, 2, 10, 16)
"""What sockets may be of: AF_UNIX, AF_INET, AF_INET6 and AF_NETLINK, which all belong to a network of its own."""
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # where struct seccomp_data has them, in bytes
_KILL, _ALLOW, _ERROR = 0x80000000, 0x7FFF0000, 0x00050000
_X32 = 0x40000000  # from here on x86-64's calls have other numbers


class _Processor(NamedTuple):
    """A kind of processor as the kernel knows it, and the numbers of its system calls."""

    architecture: int
    socket: int
    refused: tuple[int, ...]
    """ptrace, process_vm_readv, process_vm_writev, add_key, request_key, keyctl, io_uring_setup, pidfd_getfd."""


_PROCESSORS = {
    "x86_64": _Processor(0xC000003E, 41, (101, 310, 311, 248, 249, 250, 425, 438)),
    "aarch64": _Processor(0xC00000B7, 198, (117, 270, 271, 217, 218, 219, 425, 438)),
}


def call_filter() -> bytes | None:
    """Return the filter for this machine's processor, as bubblewrap reads it; None where its calls are not known."""
    known = _PROCESSORS.get(platform.machine())
    if known is None:
        return None
    steps = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_IF_EQUAL, known.architecture, then=1),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER),
        _step(_IF_AT_LEAST, _X32, otherwise=1),
        _step(_RETURN, _KILL),
    ]
    for call in known.refused:
        steps += [_step(_IF_EQUAL, call, otherwise=1), _step(_RETURN, _ERROR | errno.EPERM)]
    steps += [_step(_IF_EQUAL, known.socket, then=1), _step(_RETURN, _ALLOW), _step(_LOAD, _FIRST_ARGUMENT)]
    for family in _FAMILIES:
        steps += [_step(_IF_EQUAL, family, otherwise=1), _step(_RETURN, _ALLOW)]
    return b"".join([*steps, _step(_RETURN, _ERROR | errno.EAFNOSUPPORT)])


def _step(code: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    """Return one ``struct sock_filter``; how many steps are left out if a comparison holds, or does not."""
    return struct.pack("=HBBI", code, then, otherwise, value)
