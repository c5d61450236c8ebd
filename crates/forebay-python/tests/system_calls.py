"""Counts the system calls of a program, by ptrace(2): `python system_calls.py CODE ARGUMENT...` runs the code by this interpreter.

The program calls `syscall(MARK)` before and after each part that is counted; the kernel has no call of that number. Prints the
counts of the parts as JSON, those of all threads together. Where ptrace is refused the exit status is REFUSED.
"""

import ctypes
import json
import os
import platform
import signal
import sys

MARK = 1_000_000
REFUSED = 77
# Those of locks and of malloc, whose count depends on how threads happen to meet: futex, mmap, mprotect, munmap, brk, mremap,
# madvise.
UNCOUNTED = {202, 9, 10, 11, 12, 25, 28} if platform.machine() == "x86_64" else {98, 222, 226, 215, 214, 216, 233}

TRACE_ME, SYSCALL, SET_OPTIONS, GET_SYSCALL_INFO = 0, 24, 0x4200, 0x420E
# PTRACE_O_TRACESYSGOOD, TRACEFORK, TRACEVFORK, TRACECLONE, TRACEEXEC and EXITKILL.
OPTIONS = 0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x100000
ENTRY = 1
ALL_THREADS = 0x40000000
STOPPED_IN_CALL = signal.SIGTRAP | 0x80


class Info(ctypes.Structure):
    """The start of struct ptrace_syscall_info."""

    _fields_ = [
        ("op", ctypes.c_uint8),
        ("pad", ctypes.c_uint8 * 3),
        ("arch", ctypes.c_uint32),
        ("instruction_pointer", ctypes.c_uint64),
        ("stack_pointer", ctypes.c_uint64),
        ("number", ctypes.c_uint64),
        ("arguments", ctypes.c_uint64 * 6),
    ]


ptrace = ctypes.CDLL(None).ptrace
ptrace.restype = ctypes.c_long
ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def start(arguments):
    """Starts the interpreter, stopped before its first instruction."""
    child = os.fork()
    if child == 0:
        if ptrace(TRACE_ME, 0, None, None) == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
            os.execv(sys.executable, [sys.executable, "-c", *arguments])
        os._exit(REFUSED)
    status = os.waitpid(child, 0)[1]
    if not os.WIFSTOPPED(status) or ptrace(SET_OPTIONS, child, None, OPTIONS) != 0:
        sys.exit(REFUSED)
    return child


def count(child):
    """Runs the program to its end. Returns its exit status, and the counts of the parts."""
    parts, is_counting = [], False
    info, threads, code = Info(), {child}, None
    ptrace(SYSCALL, child, None, None)
    while threads:
        thread, status = os.waitpid(-1, ALL_THREADS)
        if not os.WIFSTOPPED(status):
            threads.discard(thread)
            if thread == child:
                code = os.waitstatus_to_exitcode(status)
            continue
        cause, signal_sent = os.WSTOPSIG(status), 0
        if cause == STOPPED_IN_CALL:
            if ptrace(GET_SYSCALL_INFO, thread, ctypes.sizeof(info), ctypes.addressof(info)) <= 0:
                sys.exit(REFUSED)
            if info.op == ENTRY and info.number == MARK:
                is_counting = not is_counting
                parts += [0] * is_counting
            elif info.op == ENTRY and is_counting and info.number not in UNCOUNTED:
                parts[-1] += 1
        elif status >> 16 == 0 and (thread in threads or cause != signal.SIGSTOP):
            # No event of ptrace, and not the first stop of a new thread.
            signal_sent = cause
        threads.add(thread)
        # Fails for a thread that another one has ended meanwhile.
        ptrace(SYSCALL, thread, None, signal_sent)
    return code, parts


if __name__ == "__main__":
    code, parts = count(start(sys.argv[1:]))
    print(json.dumps(parts))
    sys.exit(code)
