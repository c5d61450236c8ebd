"""Ctrl-C in the middle of a call, and the end of the interpreter with calls in flight."""

import signal

import pytest

# A file of holes, and a batch of it that lasts many seconds: one request at a time.
SLOW = """
import gc, os, signal, sys, threading, time
import forebay
from forebay import _forebay

path = sys.argv[1]
if not os.path.exists(path):
    with open(path, "wb") as holes:
        holes.truncate(1 << 40)
file = forebay.open(path, "direct")
COUNT = 2_000_000
ranges = memoryview(b"".join((number << 18).to_bytes(8, "little") + (1).to_bytes(8, "little") for number in range(COUNT)))
ranges = ranges.cast("Q", (COUNT, 2))
slow = dict(depth=1, max_gap=0)

# Waits until the first byte of a hole has replaced an x, or has had time for it.
def in_use(out):
    end = time.monotonic() + 3
    while out[0] == ord("x") and time.monotonic() < end:
        time.sleep(0.001)

def interrupt(out):
    in_use(out)
    os.kill(os.getpid(), signal.SIGINT)
"""


def test_ctrl_c_ends_a_call_soon_and_the_buffer_stays_until_the_kernel_is_done(program, tmp_path):
    program(
        SLOW
        + """
out = bytearray(b"x" * COUNT)
try:
    threading.Thread(target=interrupt, args=(out,)).start()
    file.read_many(ranges, out, **slow)
except KeyboardInterrupt:
    pass
else:
    raise SystemExit("the call was not slow enough, or not interrupted")
assert out[-1] == ord("x"), "it went on to its end"
# Until the engine has given the memory back, the bytearray cannot be resized; then it can, without another call of the package.
end = time.monotonic() + 20
while True:
    try:
        out.clear()
        break
    except BufferError:
        assert time.monotonic() < end, "the buffer never came back"
        time.sleep(0.001)
assert file.read(0, 10) == bytes(10), "the file works still"
assert forebay.stats()["memory"]["leaked_lends"] == 0
""",
        tmp_path / "holes",
    )


def test_a_buffer_in_use_can_be_neither_resized_nor_freed(program, tmp_path):
    program(
        SLOW
        + """
out = bytearray(b"x" * COUNT)
thread = threading.Thread(target=lambda: file.read_many(ranges, out, **slow), daemon=True)
thread.start()
in_use(out)
assert thread.is_alive()
for change in (out.clear, lambda: out.extend(b"more"), lambda: out.pop()):
    try:
        change()
    except BufferError:
        pass
    else:
        raise SystemExit("a buffer that the kernel writes into was resized")
# Dropped by the program, it stays: the operation has it.
del out, change
gc.collect()
time.sleep(0.2)
assert thread.is_alive()
""",
        tmp_path / "holes",
    )


def test_an_exception_of_a_signal_handler_ends_a_call(program, tmp_path):
    program(
        SLOW
        + """
class Stop(Exception):
    pass

def handler(*_):
    raise Stop

signal.signal(signal.SIGALRM, handler)
try:
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    file.read_many(ranges, **slow)
except Stop:
    pass
else:
    raise SystemExit("not stopped")
# A handler that returns does not end it.
seen = []
signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.1)
views = file.read_many([(number << 18, 1) for number in range(60_000)], **slow)
assert len(views) == 60_000
# A fast machine has read them before.
while not seen:
    time.sleep(0.001)
""",
        tmp_path / "holes",
    )


def test_the_interpreter_ends_with_a_daemon_thread_in_a_call(program, tmp_path):
    program(
        SLOW
        + """
out = bytearray(COUNT)
thread = threading.Thread(target=lambda: file.read_many(ranges, out, **slow), daemon=True)
thread.start()
scan = forebay.open(path, "direct").scan()
threading.Thread(target=lambda: [None for _ in scan], daemon=True).start()
time.sleep(0.3)
assert thread.is_alive()
""",
        tmp_path / "holes",
        timeout=30,
    )


def test_calls_at_exit_still_work(program, tmp_path):
    output = program(
        SLOW
        + """
import atexit
atexit.register(lambda: print("at exit:", file.read(0, 3)))
""",
        tmp_path / "holes",
    )
    assert "at exit: b'\\x00\\x00\\x00'" in output


def test_a_killed_process_is_just_gone(program, tmp_path):
    program(
        SLOW
        + """
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
file.read_many(ranges, **slow)
""",
        tmp_path / "holes",
        code=-signal.SIGTERM,
    )


@pytest.mark.parametrize("kind", ["own_gil", "shared_gil"])
def test_another_interpreter_of_the_process_is_refused_with_a_sentence(program, kind):
    output = program(
        f"""
        import forebay
        try:
            import _interpreters as interpreters
            create = lambda: interpreters.create("isolated" if "{kind}" == "own_gil" else "legacy")
        except ImportError:
            try:
                import _xxsubinterpreters as interpreters
            except ImportError:
                raise SystemExit("nothing to try")
            create = lambda: interpreters.create()
        number = create()
        code = "try:\\n  import forebay\\nexcept ImportError as error:\\n  print('refused:', error, flush=True)\\nelse:\\n  print('accepted')"
        failure = interpreters.run_string(number, code)
        if failure:
            print("refused:", failure)
        """
    )
    assert "accepted" not in output and "refused: " in output and "interpreter" in output, output
