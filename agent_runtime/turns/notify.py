"""Notifications for the author: a local command, which may fail, hang or not exist without any harm to turns."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from turnkeeper.config.settings import NotifySettings
from turnkeeper.event_log import EventLog

LONGEST_S = 30.0
MOST_AT_ONCE = 8
Event = Literal["interrupt", "failure", "pause"]
_PASSED_ON = (
    *("PATH", "HOME", "USER", "LANG"),
    *("DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"),
)


@dataclass(frozen=True, kw_only=True)
class Notification:
    """Something an author may want to know at once. The command finds each field in its environment.

    Attributes:
        task: the task's name; empty for an author's own turn.
        channel: where to look.
        interrupt_id: what is asked; empty for a failure.
    """

    event: Event
    task: str
    channel: str
    turn_id: str
    interrupt_id: str = ""


class Notifier:
    """Runs `[notify] command` with the shell, in the background."""

    def __init__(self, settings: NotifySettings, log: EventLog, environ: Mapping[str, str]) -> None:
        self._settings = settings
        self._log = log
        self._environ = {name: environ[name] for name in _PASSED_ON if name in environ}
        self._under_way: set[asyncio.Task[None]] = set()

    def notify(self, notification: Notification) -> None:
        """Start the command if the settings name this event. Never waits, never raises."""
        if not self._settings.command or notification.event not in self._settings.on:
            return
        if len(self._under_way) >= MOST_AT_ONCE:
            self._log.emit("notify.failed", turn_id=notification.turn_id, reason="too many at once")
            return
        task = asyncio.create_task(self._run(notification), name=f"notify-{notification.turn_id}")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def close(self) -> None:
        """Stop what is under way."""
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _run(self, notification: Notification) -> None:
        said = {f"TURNKEEPER_{name.upper()}": value for name, value in vars(notification).items()}
        try:
            reason = await self._shell(self._environ | said)
        except OSError as error:
            reason = os.strerror(error.errno or 0)
        if reason:
            self._log.emit("notify.failed", turn_id=notification.turn_id, reason=reason)
        else:
            self._log.emit("notify.done", turn_id=notification.turn_id, about=notification.event)

    async def _shell(self, environ: Mapping[str, str]) -> str:
        """Run the command in its own session; return why it failed, or nothing."""
        process = await asyncio.create_subprocess_shell(
            self._settings.command,
            env=dict(environ),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(LONGEST_S):
                code = await process.wait()
        except TimeoutError:
            return f"took longer than {LONGEST_S:.0f} s"
        finally:
            if process.returncode is None:
                os.killpg(process.pid, 9)
                await process.wait()
        return "" if code == 0 else f"exit status {code}"
