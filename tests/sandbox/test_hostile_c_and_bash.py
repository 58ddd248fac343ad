"""Hostile programs that no interpreter stands between: raw system calls in C, and what a shell makes easy."""

from __future__ import annotations

import os
import shutil
import socket

import pytest

from tests.sandbox.hostile import BACKENDS, assert_held

pytestmark = [pytest.mark.backends(*BACKENDS), pytest.mark.usefixtures("nothing_is_left")]

C_HEAD = """
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
"""


@pytest.fixture
def run_c(run):
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")

    def run_code(body: str, **limits: float):
        execution = run(C_HEAD + body, language="c", **limits)
        assert execution.status != "not_compiled", execution.compile
        return execution

    return run_code


FOREVER = {
    "forks": "int main() { for (;;) fork(); }",
    "forks by the raw call": "int main() { for (;;) syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); }",
    "siblings instead of children": "int main() { for (;;) syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0); }",
    "threads": "void *f(void *x) { pause(); return x; } "
    "int main() { pthread_t t; for (;;) pthread_create(&t, 0, f, 0); }",
    "execs itself": 'int main(int n, char **v) { execv("/proc/self/exe", v); execv(v[0], v); for (;;); }',
    "blocks and ignores every signal": "int main() { sigset_t all; sigfillset(&all); sigprocmask(SIG_SETMASK, &all, 0);"
    "for (int i = 1; i < 65; i++) signal(i, SIG_IGN); for (;;); }",
    "has no open file": "int main() { for (int i = 0; i < 1024; i++) close(i); for (;;) pause(); }",
    "is its orphans' reaper": "int main() { prctl(PR_SET_CHILD_SUBREAPER, 1); "
    "if (!fork()) { if (!fork()) { setsid(); for (;;) pause(); } _exit(0); } for (;;) pause(); }",
    "is stopped": "int main() { for (;;) kill(getpid(), SIGSTOP); }",
    "is traced by its child": "int main() { if (!fork()) for (;;) syscall(SYS_ptrace, 16, getppid()); for (;;); }",
    "waits in vfork": "int main() { if (!vfork()) for (;;) pause(); }",
}


@pytest.mark.parametrize("body", FOREVER.values(), ids=FOREVER)
def test_what_would_go_on_forever_ends_at_the_wall(run_c, box, body):
    assert_held(run_c(body, wall_s=0.7, cpu_s=60), box)


LEFT_BEHIND = {
    "a daemon": "int main() { if (!fork()) { setsid(); if (!fork()) for (;;) pause(); _exit(0); } return 7; }",
    "a sibling": "int main() { if (!syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0)) for (;;) pause(); "
    "return 7; }",
    "a dead sibling": "int main() { if (!syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0)) _exit(3); "
    "usleep(50000); return 7; }",
    "a child that no signal is sent for": "int main() { if (!syscall(SYS_clone, 0, 0, 0, 0, 0)) for (;;) pause(); "
    "return 7; }",
    "a thread that outlives main": "void *f(void *x) { usleep(200000); _exit(7); return x; } "
    "int main() { pthread_t t; pthread_create(&t, 0, f, 0); syscall(SYS_exit, 0); }",
    "a stopped child": "int main() { int c = fork(); if (!c) for (;;) pause(); kill(c, SIGSTOP); return 7; }",
    "a child that holds the streams": 'int main() { if (!fork()) for (;;) write(1, "", 0); return 7; }',
}


@pytest.mark.parametrize("body", LEFT_BEHIND.values(), ids=LEFT_BEHIND)
def test_what_it_leaves_behind_changes_neither_its_end_nor_its_code(run_c, body):
    execution = run_c(body, wall_s=20)
    assert (execution.status, execution.exit_code) == ("finished", 7), execution


EXACT_ENDS = {
    "overflows its stack": (
        "int f(int n) { volatile char x[4096]; x[0] = n; return f(n + 1) + x[0]; } int main() { return f(0); }",
        11,
    ),
    "aborts": ("int main() { abort(); }", 6),
    "divides by zero": ("int main() { volatile int a = 17, z = 0; return a / z; }", 8),
    "executes nonsense": ("int main() { __builtin_trap(); }", 4),
    "terminates itself": ("int main() { kill(getpid(), SIGTERM); for (;;); }", 15),
    "kills itself": ("int main() { kill(getpid(), SIGKILL); for (;;); }", 9),
    "kills its group": ("int main() { kill(0, SIGKILL); for (;;); }", 9),
    "uses a real-time signal": ("int main() { kill(getpid(), SIGRTMIN + 1); for (;;); }", 35),
}


@pytest.mark.parametrize(("body", "signal"), EXACT_ENDS.values(), ids=EXACT_ENDS)
def test_signals_are_told_exactly(run_c, body, signal):
    execution = run_c(body)
    assert (execution.status, execution.signal, execution.exit_code) == ("finished", signal, None)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="a gate of x86_64")
def test_the_32_bit_gate_is_shut(run_c):
    """int 0x80 takes 32-bit numbers: 20 there is getpid, and 37 kill."""
    execution = run_c('int main() { int r; __asm__ volatile("int $0x80" : "=a"(r) : "a"(20)); return r != 0; }')
    assert execution.signal in (11, 31)  # SIGSEGV where the kernel has no such gate


def test_an_ignored_sigxcpu_buys_no_more_cpu(run_c):
    execution = run_c("int main() { signal(SIGXCPU, SIG_IGN); for (;;); }", cpu_s=1, wall_s=30)
    assert (execution.status, execution.limit) == ("timeout", "cpu")
    assert execution.cpu_s < 3


def test_cpu_that_many_children_burn_in_turn_is_summed(run_c):
    body = (
        "int main() { for (;;) { if (!fork()) { for (volatile long i = 0; i < 30000000; i++); _exit(0); } wait(0); } }"
    )
    execution = run_c(body, cpu_s=1, wall_s=30)
    assert (execution.status, execution.limit) == ("timeout", "cpu")
    assert execution.cpu_s < 3


def test_output_that_is_spliced_meets_the_cap(run_c):
    """vmsplice gives pages to the pipe without a write."""
    body = (
        "int main() { static char page[65536]; struct iovec v = {page, sizeof page}; memset(page, 65, sizeof page);"
        "for (;;) if (syscall(SYS_vmsplice, 1, &v, 1, 0) < 0) return 5; }"
    )
    execution = run_c(body)
    assert (execution.status, execution.limit) == ("killed", "output") or execution.exit_code == 5
    assert len(execution.stdout) <= 1 << 16


def test_pages_that_are_filled_at_once_count_as_memory(run_c, box):
    body = (
        "int main() { void *p = mmap(0, 400 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE,"
        ' -1, 0); puts(p == MAP_FAILED ? "refused" : "had it"); }'
    )
    execution = run_c(body, memory_mb=64)
    assert b"had it" not in execution.stdout
    if box.guarantees().enforces("memory"):
        assert (execution.status, execution.limit) == ("killed", "memory")


def test_privileges_are_neither_kept_nor_taken(run_c):
    body = """
int main() {
    struct sched_param p = {50};
    struct rlimit r = {RLIM_INFINITY, RLIM_INFINITY};
    printf("%d%d%d%d%d%d%d\\n", sched_setscheduler(0, SCHED_FIFO, &p) < 0, setpriority(PRIO_PROCESS, 0, -5) < 0,
           setrlimit(RLIMIT_NPROC, &r) < 0, setrlimit(RLIMIT_FSIZE, &r) < 0, setuid(0) < 0, setgid(0) < 0,
           prctl(PR_CAPBSET_READ, 21) == 1 && prctl(PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0) == 0);
}"""
    assert run_c(body).stdout == b"1111110\n"


# --- bash

BASH_FOREVER = {
    "forks": "bomb() { bomb | bomb & }; bomb; while :; do :; done",
    "ignores what it can": "trap '' TERM HUP INT QUIT ABRT XCPU; while :; do :; done",
    "waits for input of its own": "exec 3<> <(sleep 99); read -u 3 x",
    "starts itself again": 'trap "exec bash main.sh" EXIT; [ "$1" ] || exec bash main.sh x; while :; do :; done',
}


@pytest.mark.parametrize("code", BASH_FOREVER.values(), ids=BASH_FOREVER)
def test_scripts_that_go_on_forever_end_at_the_wall(run, box, code):
    assert_held(run(code, language="bash", wall_s=0.7, cpu_s=60), box)


def test_endless_output_of_many_writers_is_cut(run):
    execution = run("for n in 1 2 3 4; do yes $n & done; yes >&2", language="bash")
    assert (execution.status, execution.limit) == ("killed", "output")
    assert len(execution.stdout) + len(execution.stderr) <= 1 << 16


def test_background_jobs_of_a_script_die_with_it(run):
    code = "nohup sleep 99 & disown\n(trap '' HUP TERM; sleep 98) &\n( ( sleep 97 & ) & )\nexit 4"
    execution = run(code, language="bash", wall_s=20)
    assert (execution.status, execution.exit_code) == ("finished", 4)


def test_a_shell_raises_none_of_its_limits(run):
    code = "for l in -f -n -u -v -t -c; do ulimit -H $l unlimited 2>/dev/null && echo raised $l; done; true"
    lines = run(code, language="bash").stdout.decode().splitlines()
    assert [line for line in lines if line not in ("raised -v",)] == []  # -v has no bound where a cgroup has one


def test_a_shell_reaches_no_network(run):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"(exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo reached; true"
        assert run(code, language="bash").stdout == b""
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_shell_reads_no_environment_but_its_own(run):
    os.environ["VERIWARD_TEST_SECRET"] = "planted-secret"
    try:
        code = "cat /proc/[0-9]*/environ /proc/1/environ 2>/dev/null | tr '\\0' '\\n'; env; set"
        execution = run(code, language="bash")
    finally:
        del os.environ["VERIWARD_TEST_SECRET"]
    assert execution.status == "finished"
    assert b"planted-secret" not in execution.stdout


def test_control_characters_of_a_program_stay_bytes(run):
    """Whoever shows them cleans them; here nothing may be lost or changed."""
    code = "printf '\\033]0;title\\007\\033[2J\\r\\000\\377'"
    assert run(code, language="bash").stdout == b"\x1b]0;title\x07\x1b[2J\r\x00\xff"
