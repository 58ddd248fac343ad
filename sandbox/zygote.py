"""One slot: a confined process, pid 1 of its own namespaces, that forks a job at a time.

Started fresh by `slot.py` with a cleared environment; standard library only. It never reads a
job's code or input, so a later job's memory holds nothing of an earlier one: the fork that
becomes the job does. When a job's first process ends, every other process of the namespace is
killed and reaped before the result is sent, and its tmpfs is dropped before the next job.

Wire: the parent sends one marshalled request per job with four descriptors (program, stdin,
stdout, stderr); answers are short ASCII lines, since what runs beside hostile code is not to be
unmarshalled.
"""

from __future__ import annotations

import array
import json  # noqa: F401  # jobs that speak JSON lines would each pay 2.5 ms to import it
import marshal
import os
import resource
import select
import signal
import socket
import sys
from typing import Any

from sandbox import confine, landlock, linux, seccomp, warm
from sandbox.group_watch import GroupWatch, end_orphans
from sandbox.run_main import run_main
from sandbox.shared_root import SharedRoot
from sandbox.watch import HEADER_BYTES, CpuMeter, Watch, Watches, readable

PYTHON = "{python}"  # as in languages.py, whose imports a slot can do without
_FRESH = "run_main(open('main.py', encoding='utf-8').read(), sys.argv[1:])\n"
_RIGHTS_BYTES = socket.CMSG_SPACE(4 * array.array("i").itemsize)
_MOST_TIMERS = 256
_JOB_PATH = "/usr/local/bin:/usr/bin:/bin"
Job = tuple[dict[str, Any], tuple[str, ...]]  # a request and its command


class Setup:
    """What the parent decided for this slot, and what the machine turned out to offer."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.uid: int = config["uid"]  # 0: keep the uid, which a user namespace already made harmless
        self.interpreter_dirs: list[str] = config["interpreter_dirs"]
        self.package_dirs: list[str] = config["package_dirs"]
        self.tool_dirs: list[str] = config["tool_dirs"]
        self.sci_dirs: list[str] = config["sci_dirs"]
        self.cgroup_procs: list[str] = config["cgroup_procs"]
        self.cpu_file: str = config["cpu_file"]
        self.watch_memory: bool = config["watch_memory"]
        self.python: str = config["python"]
        self.run_main_source: str = config["run_main_source"]
        self.slot_dir: str = config["slot_dir"]  # set where jobs share the machine's root

    @property
    def job_uid(self) -> int:
        return self.uid or confine.INNER_UID


def serve(control_fd: int, parent_pid: int) -> Job:
    """Become the slot's keeper and its pid 1. Returns only in a job's process, ready to run it."""
    control = socket.socket(fileno=control_fd)
    parent = os.pidfd_open(parent_pid)
    setup = Setup(marshal.loads(control.recv(HEADER_BYTES)))
    keeper = os.pidfd_open(os.getpid())
    try:
        if setup.slot_dir:
            _must_have_landlock(setup)
            linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
        else:
            confine.enter_namespaces(with_user=not setup.uid)
    except OSError as error:
        _refuse(control, f"{'Landlock' if setup.slot_dir else 'namespaces'} ({error.strerror})")
    first = os.fork()
    if first:
        _keep(control, first, shares_root=bool(setup.slot_dir))
    try:
        kit = Kit(setup)
    except OSError as error:
        _refuse(control, f"a root of its own ({error.strerror})")
    if setup.slot_dir:  # what falls to it when the keeper dies has no namespace to end it
        linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
        parent = _either(parent, keeper)
    else:
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    control.send(f"ready landlock={kit.landlock_abi} proc={int(kit.has_proc)}".encode())
    return _serve_jobs(control, parent, kit)


def _must_have_landlock(setup: Setup) -> None:
    """Signals to processes of the same uid are only denied since ABI 6; a uid of the job's own needs no such rule."""
    needed, found = 1 if setup.uid else 6, landlock.abi()
    if found < needed:
        raise OSError(0, f"ABI {needed} needed, this kernel has {found or 'none'}")


def _either(*descriptors: int) -> int:
    """One descriptor that is readable as soon as one of these is."""
    both = select.epoll()
    for descriptor in descriptors:
        both.register(descriptor, select.EPOLLIN)
    return os.dup(both.fileno())


def _refuse(control: socket.socket, missing: str) -> None:
    control.send(f"refused {missing}".encode())
    os._exit(3)


def _keep(control: socket.socket, first: int, *, shares_root: bool) -> None:
    """Stay outside as the process that the parent can wait for; hand over a handle on pid 1."""
    handle = array.array("i", [os.pidfd_open(first)])
    control.sendmsg([b"keeper"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, handle)])
    control.close()
    _, status = os.waitpid(first, 0)
    if shares_root:
        end_orphans()
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


class Kit:
    """Everything a job needs that can be made once: the root, the filters, the limits' baselines."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        for path in setup.cgroup_procs:
            with open(path, "w") as file:
                file.write("0")
        meter = CpuMeter(setup.cpu_file)
        shown = [*setup.interpreter_dirs, *setup.tool_dirs]
        self.landlock_abi = landlock.abi()
        self.ruleset = -1
        self.place: confine.OwnRoot | SharedRoot
        if setup.slot_dir:
            self.place = SharedRoot(setup.slot_dir, setup.uid)
            if setup.sci_dirs:
                self.place.link_packages(setup.sci_dirs)
            self.ruleset = self.place.ruleset(self.landlock_abi, shown, setup.package_dirs, setup.sci_dirs)
            self.proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        else:
            self.place = confine.OwnRoot(shown, setup.package_dirs, setup.sci_dirs, setup.job_uid)
            self.proc = self.place.proc
            if self.landlock_abi:
                self.ruleset = self.place.ruleset(self.landlock_abi)
        self.has_proc = self.proc >= 0
        self.watches = Watches(
            cpu=self.has_proc, memory=self.has_proc and setup.watch_memory, meter=meter, proc=self.proc
        )
        linux.drop_bounding_capabilities()
        linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
        linux.prctl(linux.PR_SET_DUMPABLE, 0)
        self.filter = seccomp.Filter(shares_root=bool(setup.slot_dir))
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a handler would make pid 1 reachable by its jobs
        os.environ.clear()
        os.environ.update(self._environment())
        if setup.sci_dirs:
            warm.import_sci(self.place.sci_dir)
        self.address_space = self._address_space()
        self.own_modules = warm.own_modules()
        warm.settle_memory()

    def _environment(self) -> dict[str, str]:
        path = ":".join([*(f"{folder}/bin" for folder in self.setup.tool_dirs), _JOB_PATH])
        threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        here = {"HOME": self.place.work_dir, "TMPDIR": self.place.tmp_dir}
        return {**here, "LANG": "C.UTF-8", "PATH": path, **(threads if self.setup.sci_dirs else {})}

    def _address_space(self) -> int:
        """Bytes of address space the interpreter takes before a job asks for any."""
        if not self.has_proc:
            return 64 << 20
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()


def _serve_jobs(control: socket.socket, parent: int, kit: Kit) -> Job:
    while True:
        if not _wait_for_request(control, parent):
            os._exit(0)
        data, ancillary, _, _ = control.recvmsg(HEADER_BYTES, _RIGHTS_BYTES)
        if not data:
            os._exit(0)
        if data.startswith(b"kill") or not ancillary:  # a kill that came after its job had ended
            continue
        descriptors = array.array("i", bytes(ancillary[0][2]))
        request = marshal.loads(data)
        kit.place.begin_job(request["disk_mb"], request["disk_inodes"])
        kit.watches.meter.begin_job()
        child = os.fork()
        if not child:
            try:
                return _become_job(kit, request, descriptors)
            except BaseException as error:  # no program has run yet: the failure is ours, and said so
                control.send(f"unready {error!r}".encode())
                os._exit(1)
        for descriptor in descriptors:
            os.close(descriptor)
        watch = GroupWatch if kit.setup.slot_dir else Watch
        result = watch(control, parent, request, child, watches=kit.watches, place=kit.place).until_empty()
        if kit.setup.slot_dir:
            kit.place.end_job()  # first: a result says that nothing of the job is left
        control.send(result)
        if not kit.setup.slot_dir:
            kit.place.end_job()


def _wait_for_request(control: socket.socket, parent: int) -> bool:
    ready = readable([control.fileno(), parent], None)
    return parent not in ready


def _become_job(kit: Kit, request: dict[str, Any], descriptors: array.array[int]) -> Job:
    """From the slot's privileges down to the job's, in the order that each step still allows the next."""
    program, *streams = descriptors
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _make_first_to_be_oom_killed(kit)
    if kit.setup.uid:
        os.setgroups([])
        os.setresgid(kit.setup.uid, kit.setup.uid, kit.setup.uid)
        os.setresuid(kit.setup.uid, kit.setup.uid, kit.setup.uid)
    if 0 in os.getresuid():
        raise PermissionError("the job would have run as uid 0")
    linux.drop_capabilities()
    linux.prctl(linux.PR_SET_DUMPABLE, 1)  # its own /proc entry is its own again
    if kit.landlock_abi:
        landlock.restrict(kit.ruleset)
    kit.filter.apply()
    os.mkdir(kit.place.work_dir)
    os.chdir(kit.place.work_dir)
    command = _lay_out(program)
    # Only now: the slot's own descriptors may be more than the job may open.
    _set_limits(kit, request, of_python=request["warm"] or command[0] == PYTHON)
    linux.close_from(3)
    request["python"], request["run_main_source"] = kit.setup.python, kit.setup.run_main_source
    request["sci_dir"], request["own_modules"] = kit.place.sci_dir, kit.own_modules
    return request, command


def _lay_out(program: int) -> tuple[str, ...]:
    """Write the job's files to the work directory; returns its command."""
    with open(program, "rb") as file:
        command, files, are_executable = marshal.loads(file.read())
    for path, content in files.items():
        if "/" in path:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        mode = 0o755 if are_executable else 0o644
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as out:
            out.write(content)
    return command


def _make_first_to_be_oom_killed(kit: Kit) -> None:
    """The job shares its cgroup with its slot; the kernel's choice must fall on the job."""
    if kit.has_proc and kit.setup.cgroup_procs:
        file = os.open("self/oom_score_adj", os.O_WRONLY, dir_fd=kit.proc)
        os.write(file, b"1000")


def _set_limits(kit: Kit, request: dict[str, Any], *, of_python: bool) -> None:
    cpu_s = -int(-request["cpu_s"] // 1)
    wanted = [
        (resource.RLIMIT_CPU, cpu_s, cpu_s + 1),
        (resource.RLIMIT_NOFILE, request["open_files"], request["open_files"]),
        (resource.RLIMIT_FSIZE, request["file_size_mb"] << 20, request["file_size_mb"] << 20),
        (resource.RLIMIT_CORE, 1, 1),  # 1, not 0: a core_pattern that pipes to a program ignores 0 and runs it
        (resource.RLIMIT_MEMLOCK, 0, 0),
        (resource.RLIMIT_SIGPENDING, _MOST_TIMERS, _MOST_TIMERS),  # of a count that all of a uid share
    ]
    if kit.setup.uid or not kit.setup.slot_dir:
        # Not without a namespace or a uid of its own: there the count has other containers' processes in it.
        processes = request["processes"] + _shared_processes(kit)
        wanted.append((resource.RLIMIT_NPROC, processes, processes))
    if kit.setup.watch_memory:
        most = (request["memory_mb"] << 20) + kit.address_space
        # Other runtimes reserve far more address space than they use; RLIMIT_DATA leaves that out.
        wanted.append((resource.RLIMIT_AS if of_python else resource.RLIMIT_DATA, most, most))
    for which, soft, hard in wanted:
        ceiling = resource.getrlimit(which)[1]
        if ceiling != resource.RLIM_INFINITY:
            soft, hard = min(soft, ceiling), min(hard, ceiling)
        resource.setrlimit(which, (soft, hard))


def _shared_processes(kit: Kit) -> int:
    """Keeper and pid 1 share the job's uid where there is only one uid to have."""
    return 0 if kit.setup.uid else 2


def run_job(request: dict[str, Any], command: tuple[str, ...]) -> None:
    """Run the program; never returns. A warm job runs in this interpreter, any other is exec'ed."""
    if not request["warm"]:
        _exec(request, command)
    for name in request["own_modules"]:
        del sys.modules[name]
    warm.renew_randomness()
    with open("main.py", encoding="utf-8") as file:
        code = file.read()
    run_main(code, list(command))


def _exec(request: dict[str, Any], command: tuple[str, ...]) -> None:
    environment = dict(os.environ)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and an exec would hand that on
        signal.signal(number, signal.SIG_DFL)
    if command[0] == PYTHON:
        packages = f"sys.path.append({request['sci_dir']!r})" if request["sci_dir"] in sys.path else ""
        starter = f"{request['run_main_source']}\n{packages}\n{_FRESH}"
        command = (request["python"], "-s", "-P", "-S", "-B", "-c", starter, *command[2:])
        environment["PYTHONHASHSEED"] = "0"
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:  # the codes and the words of a shell
        missing = isinstance(error, FileNotFoundError)
        reason = "command not found" if missing else error.strerror
        os.write(2, f"{command[0]}: {reason}\n".encode())
        os._exit(127 if missing else 126)
