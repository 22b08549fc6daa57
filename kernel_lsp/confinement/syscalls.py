"""A filter of system calls (seccomp): what a candidate never needs fails with EPERM.

Covered, on x86-64 and aarch64: looking into other processes, namespaces and mounts, kernel
modules, keys, clocks, BPF, performance counters, io_uring, reaching any socket that it does not
hold already (Internet, netlink, Unix ones of local services, abstract ones), escaping the
parent-death signal. What stays is a socketpair of streams, and a listening Unix socket, which
CUDA's driver makes for itself. Not covered: what goes through a permitted call (ioctl, files; see
landlock.py), an attack on the kernel."""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from kernel_lsp.confinement import linux

DENIED: dict[str, tuple[int, int | None]] = {
    # name: (x86-64, aarch64); None where the machine has no such call
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "kcmp": (312, 272), "pidfd_getfd": (438, 438), "process_madvise": (440, 440),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467), "quotactl_fd": (443, 443),
    "unshare": (272, 97), "setns": (308, 268), "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89), "quotactl": (179, 60),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171),
    "clock_adjtime": (305, 266), "syslog": (103, 116), "lookup_dcookie": (212, 18),
    "open_by_handle_at": (304, 265), "fanotify_init": (300, 262), "vhangup": (153, 58),
    "connect": (42, 203), "personality": (135, 92),
    "inotify_init": (253, None), "inotify_init1": (294, 26), "inotify_add_watch": (254, 27),
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188), "msgctl": (71, 187), "semget": (64, 190), "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192), "mq_open": (240, 180), "mq_unlink": (241, 181),
    "migrate_pages": (256, 238),
    "process_mrelease": (448, 448),
    "ioperm": (173, None), "iopl": (172, None), "modify_ldt": (154, None),
}  # fmt: skip
NESTING = frozenset(
    ["mount", "umount2", "open_tree", "open_tree_attr", "move_mount", "mount_setattr", "unshare"]
)
"""What a process needs whose children confine themselves by namespaces."""
SIGNALS: dict[str, tuple[int, int]] = {
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "pidfd_send_signal": (424, 424),
}  # fmt: skip
"""Calls whose first argument says who is signaled."""
OWNERS: tuple[tuple[tuple[int, int], tuple[int, ...]], ...] = (
    ((72, 25), (8, 15)),  # fcntl: F_SETOWN, F_SETOWN_EX
    ((16, 29), (0x8901, 0x8902)),  # ioctl: FIOSETOWN, SIOCSPGRP
)
"""Calls whose second argument has the kernel send whatever signal to whoever is named, once there
is something to be read."""
OF_A_PROCESS: dict[str, tuple[int, int]] = {
    "prlimit64": (302, 261), "sched_setscheduler": (144, 119), "sched_setparam": (142, 118),
    "sched_setattr": (314, 274), "sched_setaffinity": (203, 122), "move_pages": (279, 239),
}  # fmt: skip
"""Calls whose first argument is a process, 0 for the caller."""
OF_A_GROUP: dict[str, tuple[int, int]] = {"setpriority": (141, 140), "ioprio_set": (251, 30)}
"""Calls whose first argument says what sort of thing the second, 0 for the caller, is a number
of."""
KIND = {"setpriority": 0, "ioprio_set": 1}
"""The sort that is a process."""
METADATA: dict[str, tuple[int | None, int | None]] = {
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14),
    "lremovexattr": (198, 15), "fremovexattr": (199, 16), "setxattrat": (463, 463),
    "removexattrat": (466, 466), "file_setattr": (469, 469),
}  # fmt: skip
"""Calls that change modes, owners, times and attributes, which Landlock does not hold."""
SOCKET, SOCKETPAIR, CLONE, PRCTL, CLONE3 = (41, 198), (53, 199), (56, 220), (157, 167), (435, 435)
SECCOMP = (317, 277)
AUDIT_ARCH = (0xC000003E, 0xC00000B7)
X32 = 0x40000000
"""Call numbers from here on are x86-64's second table, which would go around the list."""
NAMESPACES = 0x7E020000 | 0x80
"""Every CLONE_NEW* flag (the time namespace is 0x80)."""
AF_UNIX, SOCK_STREAM, SOCK_SEQPACKET = 1, 1, 5
"""A socket of datagrams needs no connect to reach an address, not even one of a pair."""
SOCKET_TYPES = 0xF

_AND, _LOAD, _EQUAL, _NOT_BELOW, _ANY_BIT, _RETURN = 0x54, 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER, _ARCH, _ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24
_DONE = 0
"""Not done, although the call succeeds for its caller: compilers stop where they cannot set a
mode."""
_SET_MODE_FILTER, _SPEC_ALLOW = 1, 4


class _FilterProgram(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def install(
    *, nesting: bool = False, signals: bool = True, others: bool = True, metadata: bool = True
) -> None:
    """Filter this process and all it starts, for good. Needs no_new_privs. Raises OSError.

    ``nesting``: its children confine themselves further. ``signals``: False where nothing else
    keeps signals from processes outside; it may then signal itself alone. ``others``: False where
    it can name processes outside; it may then set limits, priority and cores of itself alone.
    ``metadata``: False where no view of its own keeps modes and times of files outside; none is
    changed then, which it is not told."""
    code = program(nesting=nesting, signals=signals, others=others, metadata=metadata)
    head = _FilterProgram(len(code) // 8, code)
    number = SECCOMP[_machine()]
    # SPEC_ALLOW: without it older kernels slow the process down, and it is being timed.
    linux.syscall("seccomp", number, _SET_MODE_FILTER, _SPEC_ALLOW, ctypes.byref(head))


def program(
    *, nesting: bool = False, signals: bool = True, others: bool = True, metadata: bool = True
) -> bytes:
    """The filter as instructions of classic BPF, for this process."""
    machine, itself = _machine(), os.getpid()
    names = DENIED.keys() - (NESTING if nesting else set())
    denied = sorted(number for name in names if (number := DENIED[name][machine]) is not None)
    parts = [
        _step(_LOAD, _ARCH),
        _step(_EQUAL, AUDIT_ARCH[machine], 1, 0),
        _fail(errno.ENOSYS),
        _step(_LOAD, _NUMBER),
        _step(_NOT_BELOW, X32, 0, 1),
        _fail(errno.ENOSYS),
        # No pointer can be followed here; without clone3 the C library uses clone, whose flags can
        # be seen.
        *_when(CLONE3[machine], [_fail(errno.ENOSYS)]),
        *_when(SOCKET[machine], _unless_local_stream()),
        *_when(SOCKETPAIR[machine], _unless_local_stream()),
        *_when(CLONE[machine], _unless_argument(_step(_ANY_BIT, NAMESPACES, 0, 1))),
    ]
    if not nesting:
        parts += _when(
            PRCTL[machine], _unless_argument(_step(_EQUAL, linux.PR_SET_PDEATHSIG, 0, 1))
        )
    if not signals:
        parts += _refuse_signals(machine, itself)
    if not others:
        for numbers in OF_A_PROCESS.values():
            parts += _when(numbers[machine], _unless_itself(itself))
        for name, numbers in OF_A_GROUP.items():
            parts += _when(numbers[machine], _unless_itself(itself, kind=KIND[name]))
    if not metadata:
        changed = sorted(
            number for both in METADATA.values() if (number := both[machine]) is not None
        )
        for number in changed:
            parts += _when(number, [_fail(_DONE)])
    for number in denied:
        parts += _when(number, [_fail(errno.EPERM)])
    return b"".join([*parts, _step(_RETURN, _ALLOW)])


def _refuse_signals(machine: int, itself: int) -> list[bytes]:
    """Fail where another process is signalled, at once or as the owner of a file's events."""
    at_once = [
        _when(n[machine], _unless_argument(_step(_EQUAL, itself, 1, 0))) for n in SIGNALS.values()
    ]
    owners = [_when(n[machine], _unless_second_argument(orders)) for n, orders in OWNERS]
    return [step for steps in (*at_once, *owners) for step in steps]


def _machine() -> int:
    return 0 if linux.MACHINE == "x86_64" else 1


def _step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)


def _fail(code: int) -> bytes:
    return _step(_RETURN, _ERRNO | code)


def _when(number: int, then: list[bytes]) -> list[bytes]:
    """``then`` for one call; otherwise go on behind it."""
    return [_step(_EQUAL, number, 0, len(then)), *then]


def _unless_argument(test: bytes) -> list[bytes]:
    """Fail unless ``test`` of the first argument's low half skips the failure; ends in any case."""
    return [_step(_LOAD, _ARGUMENT), test, _fail(errno.EPERM), _step(_RETURN, _ALLOW)]


def _unless_second_argument(values: tuple[int, ...]) -> list[bytes]:
    """Fail where the second argument is one of these; ends in any case."""
    refused = [step for value in values for step in _when(value, [_fail(errno.EPERM)])]
    return [_step(_LOAD, _SECOND_ARGUMENT), *refused, _step(_RETURN, _ALLOW)]


def _unless_itself(itself: int, kind: int | None = None) -> list[bytes]:
    """Fail unless the first argument, or with ``kind`` the second after that one, is 0 or this
    process."""
    checked = [] if kind is None else [_step(_LOAD, _ARGUMENT), _step(_EQUAL, kind, 0, 3)]
    return [
        *checked,
        _step(_LOAD, _ARGUMENT if kind is None else _SECOND_ARGUMENT),
        _step(_EQUAL, 0, 2, 0),
        _step(_EQUAL, itself, 1, 0),
        _fail(errno.EPERM),
        _step(_RETURN, _ALLOW),
    ]


def _unless_local_stream() -> list[bytes]:
    """Fail unless the arguments ask for a Unix socket that reaches nothing without connect."""
    return [
        _step(_LOAD, _ARGUMENT),
        _step(_EQUAL, AF_UNIX, 1, 0),
        _fail(errno.EPERM),
        _step(_LOAD, _SECOND_ARGUMENT),
        _step(_AND, SOCKET_TYPES),
        _step(_EQUAL, SOCK_STREAM, 2, 0),
        _step(_EQUAL, SOCK_SEQPACKET, 1, 0),
        _fail(errno.EPERM),
        _step(_RETURN, _ALLOW),
    ]
