"""The escape corpus: small programs that try to get out of a confined child, as a table.

A case is Python that runs in the child with the names of `World` filled in. It has escaped when its ``proof``
holds: the planted secret was ``read``, something was ``written`` outside, a listener was ``reached``, a call
went through to the kernel (``call``: any other errno than a refusal; arguments are always invalid, so that
nothing happens), or it simply ended without an exception (``done``).

``off``: layers without which it does escape, each case shown to be one. ``root``: only root can do it with
every layer off. Standard library only: the same file is imported in the child.
"""

from __future__ import annotations

from dataclasses import dataclass

VIEW = ("namespaces", "landlock")
"""What keeps files outside: either of the two."""
FILTER = ("seccomp",)
ALL = ("namespaces", "landlock", "seccomp", "privileges")
NETWORK = ("namespaces", "landlock", "seccomp")


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    code: str
    proof: str
    off: tuple[str, ...]
    root: bool = False
    shown: bool = True
    """Whether it can be shown to escape: not where the machine itself refuses it (said in ``why``)."""
    why: str = ""
    remains: bool = False
    """Whether it may get out with every layer on, as the documentation says."""


def _case(name: str, code: str, proof: str, off: tuple[str, ...], **more: object) -> Case:
    return Case(name=name, code=code, proof=proof, off=off, **more)  # type: ignore[arg-type]


# --- reading what was planted --------------------------------------------------------------------

PLACES = (
    "home",
    "roots",
    "srv",
    "mnt",
    "opt",
    "vartmp",
    "varlib",
    "run",
    "top",
    "tmp",
    "shm",
    "neighbor",
)
"""Keys of World.secrets: a folder that holds `.hidden/key`, wherever homes may lie."""
HOW = {
    "a link": "os.symlink(KEY, 'link'); found = open('link').read()",
    "a link to its folder": "os.symlink(os.path.dirname(KEY), 'folder'); found = open('folder/key').read()",
    "a chain of links": "os.symlink(KEY, 'a'); os.symlink('a', 'b'); found = open('b').read()",
    "a hard link": "os.link(KEY, 'hard'); found = open('hard').read()",
    "its root": "found = open('/proc/self/root' + KEY).read()",
    "its working directory": "found = open('/proc/self/cwd/../../../../../../../..' + KEY).read()",
    "steps upward": "found = open('../' * 12 + KEY[1:]).read()",
    "a path handle": "fd = os.open(KEY, os.O_PATH); found = open(f'/proc/self/fd/{fd}').read()",
    "a folder's handle": "fd = os.open(os.path.dirname(KEY), os.O_PATH); "
    "found = open(os.open('key', os.O_RDONLY, dir_fd=fd)).read()",
    "another program": "found = subprocess.run(['cat', KEY], capture_output=True, text=True).stdout",
    "the root of the first process": "found = open('/proc/1/root' + KEY).read()",
    "renaming it": "os.rename(KEY, 'mine'); found = open('mine').read()",
    "mapping it": "f = open(KEY, 'rb'); found = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)[:].decode()",
    "sending it": "out = open('sent', 'wb'); os.sendfile(out.fileno(), os.open(KEY, os.O_RDONLY), 0, 99); "
    "found = open('sent').read()",
    "copying a range": "out = os.open('c', os.O_CREAT | os.O_RDWR); "
    "os.copy_file_range(os.open(KEY, os.O_RDONLY), out, 99); found = open('c').read()",
    "a shell": "found = os.popen(f'tail -n 1 {KEY}').read()",
    "a thread": "t = threading.Thread(target=lambda: box.append(open(KEY).read())); t.start(); t.join(); "
    "found = box[0]",
    "a fork": "r, w = os.pipe()\nif os.fork() == 0:\n    os.write(w, open(KEY, 'rb').read()); os._exit(0)\n"
    "os.close(w); found = os.read(r, 99).decode()",
    "the real user id": "os.setreuid(os.getuid(), os.getuid()); found = open(KEY).read()",
}


def reading() -> list[Case]:
    found = [
        _case(
            f"read a hidden file below {place}",
            f"found = open(SECRETS[{place!r}]).read()",
            "read",
            VIEW,
        )
        for place in PLACES
    ]
    found += [
        _case(
            f"list a folder below {place}",
            f"found = os.listdir(FOLDERS[{place!r}])[0]",
            "read",
            VIEW,
        )
        for place in ("home", "srv", "run", "tmp")
    ]
    key = "KEY = SECRETS['home']; box = []\n"
    unshown = {
        "renaming it": "the file lies on another file system or belongs to somebody else",
        "a hard link": "the same",
        "the root of the first process": "only root may look there, and not in every container",
        "sending it": "",
    }
    for how, code in HOW.items():
        shown = not unshown.get(how)
        more = {"shown": shown, "why": unshown.get(how, "")}
        found.append(_case(f"read a hidden file by {how}", key + code, "read", VIEW, **more))
    return found


# --- other processes -----------------------------------------------------------------------------


def processes() -> list[Case]:
    """VICTIM is a process of the same user outside, which holds the secret in environment and arguments."""
    read = [
        ("its environment", "found = open(f'/proc/{VICTIM}/environ').read()"),
        ("its arguments", "found = open(f'/proc/{VICTIM}/cmdline').read()"),
        ("its open file", "found = open(f'/proc/{VICTIM}/fd/0').read()"),
        ("its folder", "found = open(f'/proc/{VICTIM}/cwd/key').read()"),
        ("its root", "found = open(f'/proc/{VICTIM}/root{SECRETS[\"home\"]}').read()"),
        ("every environment", "found = ''\nfor p in os.listdir('/proc'):\n    try:\n"
         "        found += open(f'/proc/{p}/environ', errors='replace').read()\n    except OSError:\n        pass"
         "\nfound = found[found.find(SECRET):][:99]"),
        ("its memory's map", "found = SECRET if len(open(f'/proc/{VICTIM}/maps').read()) > 99 else ''"),
        ("its task's environment", "found = open(f'/proc/{VICTIM}/task/{VICTIM}/environ').read()"),
    ]  # fmt: skip
    done = [
        ("signal it", "os.kill(VICTIM, 0)"),
        ("signal its thread", "call(200, VICTIM, 0)"),
        ("signal its thread by group", "call(234, VICTIM, VICTIM, 0)"),
        ("queue a signal", "info = ctypes.create_string_buffer(128); struct.pack_into('iii', info, 0, 0, 0, -1)\n"
         "check(libc.syscall(129, VICTIM, 0, info))"),
        ("signal it by a handle", "signal.pidfd_send_signal(os.pidfd_open(VICTIM), 0)"),
        ("signal its group", "os.killpg(os.getpgid(VICTIM), 0)"),
        ("stop it", "os.kill(VICTIM, signal.SIGCONT)"),
        ("set its limits", "resource.prlimit(VICTIM, resource.RLIMIT_CORE, (0, 0))"),
        ("set its cores", "os.sched_setaffinity(VICTIM, os.sched_getaffinity(0))"),
        ("set its priority", "os.setpriority(os.PRIO_PROCESS, VICTIM, os.getpriority(os.PRIO_PROCESS, VICTIM))"),
        ("set its scheduler", "os.sched_setscheduler(VICTIM, os.SCHED_OTHER, os.sched_param(0))"),
        ("set its parameters", "os.sched_setparam(VICTIM, os.sched_param(0))"),
        ("set its disk priority", "call(251, 1, VICTIM, (2 << 13) | 4)"),
        ("have it killed first", "open(f'/proc/{VICTIM}/oom_score_adj', 'w').write('1000')"),
        ("take its memory back", "open(f'/proc/{VICTIM}/clear_refs', 'w').write('1')"),
    ]  # fmt: skip
    traced = [
        ("attach to it", "call(101, 16, VICTIM, 0, 0)"),
        ("seize it", "call(101, 0x4206, VICTIM, 0, 0)"),
        ("read its memory", "call(310, VICTIM, 0, 0, 0, 0, 0)"),
        ("write its memory", "call(311, VICTIM, 0, 0, 0, 0, 0)"),
        ("take its files", "call(438, os.pidfd_open(os.getpid()), 999, 0)"),
        ("compare with it", "call(312, os.getpid(), VICTIM, 99, 0, 0)"),
        ("advise its memory", "call(440, -1, 0, 0, 0, 0)"),
        ("reap its memory", "call(448, -1, 0)"),
        ("move its pages", "call(256, VICTIM, -1, 0, 0)"),
        ("count its events", "call(298, 0, VICTIM, -1, -1, 0)"),
    ]
    found = [_case(f"of another process: read {what}", code, "read", ALL) for what, code in read]
    found += [_case(f"of another process: {what}", code, "done", ALL) for what, code in done]
    found += [_case(f"of another process: {what}", code, "call", FILTER) for what, code in traced]
    return found


# --- writing outside -----------------------------------------------------------------------------

WRITTEN = (
    "home",
    "roots",
    "srv",
    "mnt",
    "opt",
    "vartmp",
    "varlib",
    "run",
    "tmp",
    "shm",
    "neighbor",
)


def writing() -> list[Case]:
    """OUT(place, name) is a path outside that the test looks at afterwards."""
    found = [
        _case(
            f"write a file below {place}",
            f"open(OUT[{place!r}] + '/NAME', 'w').write('x')",
            "written",
            VIEW,
        )
        for place in WRITTEN
    ]
    ways = {
        "through a link": "os.symlink(OUT['home'], 'out'); open('out/NAME', 'w').write('x')",
        "through a link to a file": "os.symlink(OUT['home'] + '/NAME', 'f'); open('f', 'w').write('x')",
        "by renaming": "open('mine', 'w').write('x'); os.rename('mine', OUT['home'] + '/NAME')",
        "by a hard link": "open('mine', 'w').write('x'); os.link('mine', OUT['home'] + '/NAME')",
        "by a folder": "os.mkdir(OUT['home'] + '/NAME')",
        "by a pipe": "os.mkfifo(OUT['home'] + '/NAME')",
        "by a link there": "os.symlink('x', OUT['home'] + '/NAME')",
        "by a socket": "socket.socket(socket.AF_UNIX).bind(OUT['home'] + '/NAME')",
        "by its root": "open('/proc/self/root' + OUT['home'] + '/NAME', 'w').write('x')",
        "by a folder's handle": "fd = os.open(OUT['home'], os.O_PATH); "
        "os.close(os.open('NAME', os.O_CREAT | os.O_WRONLY, dir_fd=fd))",
        "by a nameless file": "fd = os.open(OUT['home'], os.O_TMPFILE | os.O_WRONLY); "
        "check(libc.linkat(-100, b'/proc/self/fd/%d' % fd, -100, (OUT['home'] + '/NAME').encode(), 0x400))",
        "by another program": "subprocess.run(['touch', OUT['home'] + '/NAME'], check=True)",
        "by a race of links": "stop = []; __import__('sys').setswitchinterval(1e-5)\n"
        "def swap():\n    while not stop:\n        for to in ('.', OUT['home']):\n"
        "            os.symlink(to, 'n'); os.rename('n', 'raced')\n"
        "t = threading.Thread(target=swap, daemon=True); t.start()\n"
        "end = time.monotonic() + 1\n"
        "while time.monotonic() < end and not os.path.exists(OUT['home'] + '/NAME'):\n    try:\n        open('raced/NAME', 'w').write('x')\n    except OSError:\n        pass\n"
        "stop.append(1); t.join()",
    }
    found += [_case(f"write {how}", code, "written", VIEW) for how, code in ways.items()]
    changes = {
        "append to it": "open(FILE, 'a').write('x')",
        "truncate it": "os.truncate(FILE, 0)",
        "remove it": "os.unlink(FILE)",
        "rename it": "os.rename(FILE, FILE + 'x')",
        "replace it": "open('mine', 'w').write('x'); os.replace('mine', FILE)",
        "change its mode": "os.chmod(FILE, 0o600)",
        "change its mode by a handle": "fd = os.open(FILE, os.O_PATH); os.chmod(f'/proc/self/fd/{fd}', 0o600)",
        "change its times": "os.utime(FILE, (1, 1))",
        "change its attributes": "os.setxattr(FILE, 'user.kernel', b'x')",
        "change its owner": "os.chown(FILE, os.getuid(), os.getgid() or 12)",
        "watch it": "libc.inotify_add_watch(libc.inotify_init(), FILE.encode(), 2) >= 0 or 1 / 0",
    }
    for what, code in changes.items():
        kept = (*VIEW, *FILTER)
        unshown = {
            "change its owner": "a user gives nothing away",
            "change its attributes": "tmpfs may have none",
        }
        more = {"shown": what not in unshown, "why": unshown.get(what, "")}
        proof = "done" if what == "watch it" else "changed"
        lines = f"FILE = FILES[{what!r}]\n{code}"
        found.append(_case(f"a file outside: {what}", lines, proof, kept, **more))
    return found


# --- connecting ----------------------------------------------------------------------------------


PACKETS = (17, 44)
"""Families that ask for a capability."""


def connecting() -> list[Case]:
    reached = {
        "TCP": "s = socket.socket(); s.connect(TCP); s.send(b'NAME')",
        "TCP by a fast open": "socket.socket().sendto(b'NAME', 0x20000000, TCP)",
        "TCP by another program": "subprocess.run([PYTHON, '-S', '-c', f'import socket; "
        'socket.create_connection({TCP!r}).send(b"NAME")\'], check=True)',
        "UDP": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'NAME', UDP)",
        "UDP connected": "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(UDP); s.send(b'NAME')",
        "a local service": "s = socket.socket(socket.AF_UNIX); s.connect(SERVICE); s.send(b'NAME')",
        "a local service below /run": "s = socket.socket(socket.AF_UNIX); s.connect(RUN); s.send(b'NAME')",
        "a local service's datagrams": "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'NAME', LOG)",
        "a local service's messages": "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)"
        ".sendmsg([b'NAME'], [], 0, LOG)",
        "datagrams of a pair": "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'NAME', LOG)",
        "raw datagrams of a pair": "socket.socketpair(socket.AF_UNIX, socket.SOCK_RAW)[0].sendto(b'NAME', LOG)",
        "an abstract socket": "s = socket.socket(socket.AF_UNIX); s.connect(ABSTRACT); s.send(b'NAME')",
        "a logging handler": "logging.handlers.SysLogHandler(LOG).emit(logging.makeLogRecord({'msg': 'NAME'}))",
        "a handle given away": "s = socket.socket(socket.AF_UNIX); s.connect(SERVICE); "
        "socket.send_fds(s, [b'NAME'], [0])",
    }
    families = {
        "Internet": (2, 1), "Internet 6": (10, 1), "raw Internet": (2, 3), "netlink": (16, 3),
        "routing": (16, 2), "packets": (17, 3), "packets of datagrams": (17, 2), "vsock": (40, 1),
        "the kernel's ciphers": (38, 5), "keys": (15, 3), "express data path": (44, 3), "TIPC": (30, 5),
        "CAN": (29, 3), "Bluetooth": (31, 1), "AppleTalk": (5, 2), "X.25": (9, 5), "RDS": (21, 5),
        "SMC": (43, 1), "NFC": (39, 5), "Phonet": (35, 2), "KCM": (41, 2), "QIPCRTR": (42, 2),
    }  # fmt: skip
    local = {"a local service", "a local service's datagrams", "a local service's messages", "a logging handler",
             "datagrams of a pair", "raw datagrams of a pair", "a handle given away"}  # fmt: skip
    found = []
    for how, code in reached.items():
        off = FILTER if how in local else NETWORK
        found.append(_case(f"reach {how}", code, "reached", off))
    found += [
        _case(
            f"make a socket of {what}",
            f"call(41, {family}, {kind}, 0)",
            "call",
            ALL if family in PACKETS else FILTER,
            root=family in PACKETS,
        )
        for what, (family, kind) in families.items()
    ]
    found.append(
        _case(
            "offer a service",
            "s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()",
            "done",
            ("landlock", *FILTER),
        )
    )
    return found


# --- the kernel's other doors --------------------------------------------------------------------

CALLS = {
    # name: number on x86-64, invalid arguments
    "bpf": (321, -1, 0, 0), "perf_event_open": (298, 0, 0, -1, -1, 0), "userfaultfd": (323, -1),
    "io_uring_setup": (425, 0, 0), "io_uring_enter": (426, -1, 0, 0, 0, 0), "io_uring_register": (427, -1, 0, 0, 0),
    "add_key": (248, 0, 0, 0, 0, 0), "request_key": (249, 0, 0, 0, 0), "keyctl": (250, 999, 0, 0, 0, 0),
    "mount": (165, 0, 0, 0, 0, 0), "umount2": (166, 0, 0), "pivot_root": (155, 0, 0), "chroot": (161, 0),
    "open_tree": (428, -1, 0, 0), "move_mount": (429, -1, 0, -1, 0, 0), "fsopen": (430, 0, 0),
    "fsconfig": (431, -1, 0, 0, 0, 0), "fsmount": (432, -1, 0, 0), "fspick": (433, -1, 0, 0),
    "mount_setattr": (442, -1, 0, 0, 0, 0), "unshare": (272, 0x1), "setns": (308, -1, 0),
    "sethostname": (170, 0, 999), "setdomainname": (171, 0, 999), "init_module": (175, 0, 0, 0),
    "finit_module": (313, -1, 0, 0), "delete_module": (176, 0, 0), "kexec_load": (246, 0, 99, 0, -1),
    "kexec_file_load": (320, -1, -1, 0, 0, -1), "reboot": (169, 0, 0, 0, 0), "swapon": (167, 0, 0),
    "swapoff": (168, 0), "acct": (163, 1), "quotactl": (179, -1, 0, 0, 0), "settimeofday": (164, 1, 1),
    "clock_settime": (227, 99, 0), "adjtimex": (159, 0), "clock_adjtime": (305, 99, 0), "syslog": (103, 99, 0, 0),
    "open_by_handle_at": (304, -1, 0, 0), "fanotify_init": (300, -1, -1), "personality": (135, 0xFFFFFFFF),
    "ioperm": (173, 0x10000, 1, 1), "iopl": (172, 9), "modify_ldt": (154, 9, 0, 0),
    "shmget": (29, 999, 0, 0), "shmat": (30, -1, 0, 0), "msgget": (68, 999, 0), "semget": (64, 999, 0, 0),
    "mq_open": (240, 0, 0, 0, 0),
}  # fmt: skip
ROOT_ALONE = {
    "bpf", "mount", "umount2", "pivot_root", "open_tree", "move_mount", "fsopen", "fsconfig", "fsmount", "fspick",
    "mount_setattr", "sethostname", "setdomainname", "init_module", "finit_module", "delete_module", "kexec_load",
    "kexec_file_load", "reboot", "swapon", "swapoff", "acct", "settimeofday", "open_by_handle_at", "iopl",
    "chroot", "setns", "syslog", "userfaultfd", "perf_event_open", "quotactl", "ioperm", "fanotify_init",
}  # fmt: skip
ABSENT = {"kexec_load", "kexec_file_load", "swapon", "swapoff", "quotactl", "userfaultfd", "fanotify_init",
          "init_module", "finit_module", "delete_module", "modify_ldt", "acct", "ioperm", "iopl"}  # fmt: skip
"""Calls that a kernel may be built without: shown where it has them."""


def kernel() -> list[Case]:
    found = []
    for name, (number, *arguments) in CALLS.items():
        off = ALL if name in ROOT_ALONE else FILTER
        code = f"call({number}, {', '.join(map(str, arguments))})"
        shown = name not in ABSENT
        found.append(
            _case(f"call {name}", code, "call", off, root=name in ROOT_ALONE, shown=shown,
                  why="" if shown else "a kernel may be built without it")
        )  # fmt: skip
    flags = {"user": 0x10000000, "mount": 0x20000, "network": 0x40000000, "process": 0x20000000, "cgroup": 0x2000000,
             "host name": 0x4000000, "IPC": 0x8000000, "time": 0x80}  # fmt: skip
    for what, flag in flags.items():
        root = what != "user"
        found.append(
            _case(
                f"make a {what} namespace",
                f"call(272, {flag})",
                "call",
                ALL if root else FILTER,
                root=root,
            )
        )
    found += [
        _case("make a user namespace by clone", "pid = call(56, 0x10000011, 0, 0, 0, 0)\nif pid == 0:\n    os._exit(0)",
              "done", FILTER),
        _case("make a user namespace by clone3", "call(435, 0, 0)", "call", FILTER),
        _case("outlive the parent", "check(libc.prctl(1, 0))", "done", FILTER),
        _case("use the second table of calls", "call(0x40000000 + 39)", "call", FILTER, shown=False,
              why="most kernels are built without it"),
    ]  # fmt: skip
    return found


def privileges() -> list[Case]:
    opened = {
        "the kernel's memory": "/dev/mem", "its log": "/dev/kmsg", "its image": "/proc/kcore",
        "passwords' hashes": "/etc/shadow", "the disk": "DISK", "its symbols' file system": "/sys/kernel/debug/x",
    }  # fmt: skip
    written = {
        "where cores go": "/proc/sys/kernel/core_pattern", "the host's name": "/proc/sys/kernel/hostname",
        "memory's rules": "/proc/sys/vm/overcommit_memory", "magic keys": "/proc/sysrq-trigger",
        "huge pages": "/sys/kernel/mm/transparent_hugepage/enabled", "a device": "/sys/block/DISKNAME/queue/nr_requests",
    }  # fmt: skip
    may_lack = {"/dev/mem", "/sys/kernel/debug/x", "/proc/kcore", "/proc/sysrq-trigger", "DISK",
                "/sys/block/DISKNAME/queue/nr_requests", "/sys/kernel/mm/transparent_hugepage/enabled"}  # fmt: skip
    found = []
    for mode, table in (("os.O_RDONLY", opened), ("os.O_WRONLY", written)):
        for what, path in table.items():
            shown = path not in may_lack
            place = f"{path!r}.replace('DISKNAME', DISK).replace('DISK', '/dev/' + DISK)"
            code = f"fd = os.open({place}, {mode} | os.O_NONBLOCK)"
            code += "\nassert os.read(fd, 8192)" if mode == "os.O_RDONLY" else ""
            why = "" if shown else "not every machine has it"
            found.append(
                _case(
                    f"open {what} ({mode[5:]})", code, "done", ALL, root=True, shown=shown, why=why
                )
            )
    found += [
        _case("keep a capability", "header = struct.pack('=Ii', 0x20080522, 0); data = ctypes.create_string_buffer(24)\n"
              "check(libc.syscall(125, header, data)); assert any(data.raw)", "done", ALL, root=True),
        _case("gain rights by a program that gives them",
              "assert 'NoNewPrivs:\\t0' in open('/proc/self/status').read()", "done", ALL, shown=False,
              why="no layer that is switched off here sets it"),
        _case("become another user", "os.setresuid(12345, 12345, 12345)", "done", ALL, root=True),
        _case("take another group", "os.setgroups([12345])", "done", ALL, root=True),
        _case("make a device", "os.mknod('disk', 0o60600, os.makedev(254, 0))", "done", ALL, root=True),
        _case("make a program that gives root's rights", "open('s', 'w').close(); os.chown('s', 12345, 12345); assert os.stat('s').st_uid == 12345", "done",
              ALL, root=True),
        _case("type into a terminal", "import fcntl; fcntl.ioctl(os.open('/dev/tty', os.O_RDWR), 0x5412, b'x')", "done",
              ALL, shown=False, why="it has no terminal, whatever is switched off"),
        _case("break out of a root", "os.mkdir('r'); os.chroot('r'); os.chroot('../../../..')", "done", ALL, root=True),
    ]  # fmt: skip
    return found


def hoarding() -> list[Case]:
    """Limits are set by the order; ``off`` names them as a layer."""
    return [
        _case("write too large a file", "open('large', 'wb').truncate(64 * 2**20)", "done", ("limits",)),
        _case("take too much memory", "mmap.mmap(-1, 8 * 2**30)", "done", ("limits",)),
        _case("leave a core", "assert resource.getrlimit(resource.RLIMIT_CORE)[1] != 0", "done", ("limits",),
              shown=False, why="a machine may allow none"),
        _case("fork without end", "made = 0\nwhile made < 600:\n    if os.fork() == 0:\n        time.sleep(2); os._exit(0)\n"
              "    made += 1", "done", ("limits",), shown=False, why="two cores are not to be held by a test"),
    ]  # fmt: skip


# --- the GPU -------------------------------------------------------------------------------------

DRIVER = """cuda, code = ctypes.CDLL('libcuda.so.1'), ctypes.c_int()
def cu(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code:
        raise OSError(1, f'{name}: {code}')
class Handle(ctypes.Structure):
    _fields_ = [('bytes', ctypes.c_ubyte * 64)]
context, at, buffer = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.create_string_buffer(64)
cu('cuInit', 0)
cu('cuDevicePrimaryCtxRetain', ctypes.byref(context), 0)
cu('cuCtxSetCurrent', context)
def read(address):
    cu('cuMemcpyDtoH_v2', buffer, ctypes.c_uint64(address), ctypes.c_size_t(64))
    return buffer.raw.decode(errors='replace')
def scan(begin, size):
    return next((text for step in range(0, size, 2**21) if SECRET in (text := read(begin + step))), '')
"""
"""What a program needs to use the GPU without torch. GPU of the world: memory of another process that is
filled with the secret (``handle`` shares it, ``address`` is where it lies there), and ``taken`` bytes that a
third one, which has ended, had filled with it."""


def gpu() -> tuple[Case, ...]:
    """Cases for a machine that has one, run without a limit of memory, which the driver does not bear."""
    opened = {
        "by which tools read others' memory": "/dev/nvidia-uvm-tools", "of a display": "/dev/nvidia-modeset",
        "of the switches": "/dev/nvidia-nvswitchctl", "of its way to disks": "/dev/nvidia-fs0",
        "by which it is divided": "/dev/nvidia-caps/nvidia-cap1",
    }  # fmt: skip
    own = (
        "own memory is no other's, and shows that the rest can be done",
        "cu('cuMemAlloc_v2', ctypes.byref(at), ctypes.c_size_t(2**22))\n"
        "cu('cuMemcpyHtoD_v2', at, SECRET.encode(), ctypes.c_size_t(len(SECRET)))\nfound = scan(at.value, 2**22)",
    )
    given_back = (
        "read memory that another process has given back",
        "found, tries, size = '', 0, GPU['taken']\nwhile size >= 2**21 and tries < 64 and not found:\n"
        "    try:\n        cu('cuMemAlloc_v2', ctypes.byref(at), ctypes.c_size_t(size))\n"
        "    except OSError:\n        size //= 2\n        continue\n"
        "    found, tries = scan(at.value, size), tries + 1\n",
    )
    shared = (
        "open memory that another process shares",
        "handle = Handle.from_buffer_copy(bytes.fromhex(GPU['handle']))\n"
        "cuda.cuIpcOpenMemHandle_v2.argtypes = [ctypes.c_void_p, Handle, ctypes.c_uint]\n"
        "cu('cuIpcOpenMemHandle_v2', ctypes.byref(at), handle, 1)\nfound = read(at.value)",
    )
    placed = ("read another's memory by its address", "found = read(GPU['address'])")
    share = (
        "set how it is shared, to what it is",
        "nvml, device, mode = ctypes.CDLL('libnvidia-ml.so.1'), ctypes.c_void_p(), ctypes.c_uint()\n"
        "nvml.nvmlInit_v2(); nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))\n"
        "assert nvml.nvmlDeviceGetComputeMode(device, ctypes.byref(mode)) == 0\n"
        "assert nvml.nvmlDeviceSetComputeMode(device, mode) == 0",
    )
    tables = "the GPU's own page tables hold it, whatever is switched off"
    return (
        _case(f"GPU: {own[0]}", DRIVER + own[1], "read", (), why="the one that must succeed"),
        _case(f"GPU: {shared[0]}", DRIVER + shared[1], "read", ALL, remains=True,
              why="the driver gives what a process exports to whoever of the same user holds its handle"),
        _case(f"GPU: {given_back[0]}", DRIVER + given_back[1], "read", (), shown=False,
              why="the driver wipes it, whatever is switched off"),
        _case(f"GPU: {placed[0]}", DRIVER + placed[1], "read", (), shown=False, why=tables),
        _case(f"GPU: {share[0]}", share[1], "done", ALL, root=True, shown=False,
              why="nothing is to be set where it could be"),
        *(_case(f"GPU: open a device file {what}", f"os.open({path!r}, os.O_RDWR)", "done", VIEW,
                shown=False, why="not every machine has it") for what, path in opened.items()),
    )  # fmt: skip


CASES: tuple[Case, ...] = (
    *reading(), *processes(), *writing(), *connecting(), *kernel(), *privileges(), *hoarding(),
)  # fmt: skip
GPU_CASES = gpu()
"""Of a machine with a GPU: tests/gpu/test_gpu_escapes.py."""
