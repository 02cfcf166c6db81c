"""The engine process: `python -m headrace.engine`, started by the front, which writes one line to its stdin."""

import time

_STARTED = time.monotonic()

import faulthandler  # noqa: E402
import gc  # noqa: E402

# Not while modules come and the first prompt is computed: to look through torch's takes as long as a step, and finds
# nothing. A load that begins anew collects what the failed one left.
gc.disable()

import os  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
import threading  # noqa: E402
import traceback  # noqa: E402

import msgspec  # noqa: E402

from headrace.engine.loading.inbox import Stopped  # noqa: E402
from headrace.engine.startup import start  # noqa: E402
from headrace.errors import HeadraceError  # noqa: E402
from headrace.ipc.channel import EngineChannel  # noqa: E402
from headrace.ipc.front_channel import remove_address  # noqa: E402
from headrace.ipc.messages import LoadFailed, LogLine  # noqa: E402
from headrace.ipc.options import EngineStart  # noqa: E402
from headrace.ipc.timeline import Timeline  # noqa: E402


def main() -> int:
    """Load, serve until told to stop; the exit status is 0, or 1 where the model could not be loaded."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the front decides what Ctrl-C means
    # The system sends it, and SIGCONT, to an engine that is stopped when its front dies: it shall end as any other then.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    faulthandler.enable()  # a step that hangs is ended with SIGABRT: where it hung is then on stderr
    line = sys.stdin.buffer.readline()
    begin = msgspec.json.decode(line, type=EngineStart)
    threading.Thread(
        target=_end_with_the_front, args=(begin.address,), name="front-watch", daemon=True
    ).start()
    channel = EngineChannel(begin.address)
    timeline = Timeline(_STARTED if begin.executed_s is None else begin.executed_s)
    timeline.add("start interpreter and imports", 0.0, timeline.now())
    try:
        engine = start(begin.options, channel, timeline)
    except Stopped:
        channel.close()
        return 0
    except HeadraceError as error:
        channel.send(LoadFailed(type(error).__name__, error.message, error.remedy))
        channel.close()
        return 1
    except Exception as error:
        channel.send(LogLine("error", traceback.format_exc().rstrip()))
        channel.send(LoadFailed("InternalError", f"The engine failed while loading: {error!r}"))
        channel.close()
        return 1
    # What is there now stays: to look through torch's modules again takes a tenth of a second of somebody's step.
    gc.freeze()
    gc.enable()
    try:
        engine.serve(channel)
    except HeadraceError as error:  # nothing is left to serve with, and why is for the user
        channel.send(LoadFailed(type(error).__name__, error.message, error.remedy))
        return 1
    except Exception:
        # By the front, which knows how its log is written.
        channel.send(LogLine("critical", traceback.format_exc().rstrip()))
        return 1
    finally:
        channel.close()  # what a failed step told the requests must leave before the process ends
    return 0


def _end_with_the_front(address: str) -> None:
    """The front holds the other end of stdin: when that closes, nobody needs this process.

    A front that was killed could not remove its private folder: so it is done here.
    """
    while os.read(0, 1):
        pass
    try:
        remove_address(address)
    finally:
        os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
