"""A server on a Unix socket that others remove, replace and change."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from tests.support.clock import ManualClock
from turnkeeper.bus.event_log import EventLog
from turnkeeper.config.home import Home
from turnkeeper.rpc.channel import is_serving
from turnkeeper.rpc.errors import from_rpc
from turnkeeper.rpc.server import UnixServer, keep_reachable
from turnkeeper.storage.locking import ProcessLock


@pytest_asyncio.fixture
async def server(home: Home) -> AsyncIterator[UnixServer]:
    made = UnixServer(home.socket("task-runner"))
    await made.start()
    yield made
    await made.stop(0.0)


def bind_another(path: Path) -> None:
    path.unlink()
    other = socket.socket(socket.AF_UNIX)
    other.bind(str(path))
    other.detach()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "removed": Path.unlink,
    "replaced by a file": lambda path: (path.unlink(), path.write_text("not a socket")),
    "replaced by a link": lambda path: (path.unlink(), path.symlink_to("/nowhere")),
    "replaced by another process's socket": bind_another,
    "without permission": lambda path: path.chmod(0),
    "open to others": lambda path: path.chmod(0o666),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
async def test_a_damaged_socket_is_bound_again(home: Home, server: UnixServer, damage: Callable[[Path], object]):
    path = home.socket("task-runner")
    assert await server.keep() == [], "there is nothing to do"
    damage(path)
    (wrong,) = await server.keep()
    assert wrong.startswith(f"{path} ")
    assert await asyncio.to_thread(is_serving, path)
    assert path.lstat().st_mode & 0o777 == 0o600
    assert await server.keep() == []


async def test_the_server_of_before_takes_nothing_from_the_one_of_now(home: Home, server: UnixServer):
    path = home.socket("task-runner")
    for _ in range(3):
        path.unlink()
        await server.keep()
    await asyncio.gather(*server._ending)
    assert await asyncio.to_thread(is_serving, path)
    assert [name for name in os.listdir(home.run) if name.startswith(".")] == []


async def test_a_folder_in_place_of_the_socket_is_an_error_that_leaves_nothing_behind(home: Home, server: UnixServer):
    path = home.socket("task-runner")
    path.unlink()
    path.mkdir()
    (path / "precious").touch()
    with pytest.raises(OSError, match=r"directory"):
        await server.keep()
    assert os.listdir(home.run) == [path.name]
    (path / "precious").unlink()
    path.rmdir()
    await server.keep()
    assert await asyncio.to_thread(is_serving, path), "and it goes on as soon as it can"


async def test_a_bug_is_told_in_a_sentence_and_logged_with_its_traceback(home: Home, caplog):
    async def broken(request, _context):
        raise ValueError(f"SELECT secret {request!r}")

    async def broken_stream(request, context):
        yield await broken(request, context)

    handlers = {
        "One": grpc.unary_unary_rpc_method_handler(broken),
        "Many": grpc.unary_stream_rpc_method_handler(broken_stream),
    }
    made = UnixServer(home.socket("task-runner"))
    served = grpc.method_handlers_generic_handler("Test", handlers)
    made.add(lambda _servicer, to: to.add_generic_rpc_handlers((served,)), None)
    await made.start()
    async with grpc.aio.insecure_channel(f"unix:{home.socket('task-runner')}") as channel:
        for answer in (channel.unary_unary("/Test/One")(b"x"), channel.unary_stream("/Test/Many")(b"x").read()):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await answer
            error = from_rpc(raised.value, "task-runner")
            assert str(error) == "failed by a mistake of its own (ValueError); its log says more: turnkeeper logs"
    await made.stop(0.0)
    assert caplog.text.count("SELECT secret") >= 2


async def test_what_it_stops_is_its_own_socket(home: Home):
    path = home.socket("task-runner")
    old, new = UnixServer(path), UnixServer(path)
    await old.start()
    await new.start()
    await old.stop(0.0)
    assert await asyncio.to_thread(is_serving, path)
    await new.stop(0.0)
    assert not path.exists()


async def test_an_event_log_that_can_be_written_again_is_no_trouble_any_more_although_nothing_happens(
    home: Home, server: UnixServer, clock: ManualClock
):
    log = EventLog(home.logs / "later", "task-runner", clock)
    log.emit("task.created")
    with ProcessLock(home, "task-runner") as lock:
        await keep_reachable(lock, server, log)
        assert "cannot be written" in log.trouble
        (home.logs / "later").mkdir()
        await keep_reachable(lock, server, log)
    assert log.trouble == ""
    assert '"event":"events.lost","count":1}' in next((home.logs / "later").iterdir()).read_text()


async def test_a_request_that_is_no_message_is_the_callers_mistake(home: Home, server: UnixServer) -> None:
    async with grpc.aio.insecure_channel(f"unix:{home.socket('task-runner')}") as channel:
        for method in ("Check", "Watch"):
            call = channel.unary_unary if method == "Check" else channel.unary_stream
            asked = call(f"/grpc.health.v1.Health/{method}")(b"\xff\xff")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await (asked if method == "Check" else asked.read())
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "is not a message of this method" in str(refused.value.details())
