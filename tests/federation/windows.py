"""Run a dropfed command without what Windows does not have, as far as Linux can be made to lack it.

    python -m tests.federation.windows MODULE ARGUMENTS...

What other packages are imported first, for they have versions of their own for Windows. Then the functions and modules
that are POSIX's alone vanish, files get no rights, and the platform calls itself win32: our code takes its ways for
Windows, and ends with an error where it needs what is not there.
"""

from __future__ import annotations

import importlib
import os
import runpy
import signal
import socket
import sys

from tests.federation.forked import IMPORTED

MODULES = ("fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty")
FUNCTIONS = (
    *("fork", "forkpty", "register_at_fork", "posix_spawn", "posix_spawnp", "wait", "wait3", "wait4"),
    *("getuid", "geteuid", "getgid", "getegid", "getgroups", "setuid", "setgid", "chown", "fchown", "lchown", "fchmod"),
    *("getpgid", "killpg", "setsid", "setpgid", "nice", "getpriority", "setpriority"),
    *("sched_getaffinity", "sched_setaffinity", "sched_yield", "posix_fadvise", "posix_fallocate", "memfd_create"),
    *("mkfifo", "mknod", "openpty", "pread", "pwrite", "sendfile", "statvfs", "fstatvfs", "sync", "fdatasync", "uname"),
)
SIGNALS = ("SIGKILL", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGCHLD", "SIGPIPE", "SIGQUIT")


def _no_folder(path: object, flags: int, *arguments: object, **options: object) -> int:
    """``os.open``, which on Windows opens no folder."""
    if os.path.isdir(path):  # type: ignore[arg-type]  # noqa: PTH112  (as os.open takes it)
        raise PermissionError(13, "Permission denied", path)
    return _open(path, flags, *arguments, **options)  # type: ignore[arg-type]


for name in (*IMPORTED, "click", "filelock"):
    importlib.import_module(name)
_open = os.open
os.open = _no_folder
for name in MODULES:
    sys.modules[name] = None  # type: ignore[assignment]
for module, missing in ((os, FUNCTIONS), (signal, SIGNALS), (socket, ("AF_UNIX",))):
    for name in missing:
        delattr(module, name)
sys.platform = "win32"
module = sys.argv[1]
sys.argv = [module, *sys.argv[2:]]
runpy.run_module(module, run_name="__main__", alter_sys=True)
