"""Names of channels, for a shell that completes them."""

from agent_runtime.cli.client import held, runtime
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.errors import TurnkeeperError, Unreachable


def complete_channel(incomplete: str) -> list[str]:
    """Return the channels that a channel's name may be completed to; none where nobody can tell."""
    request = wire.ListChannelsRequest()
    try:
        caller = runtime()
        try:
            found = caller.ListChannels(request, deadline_s=1.0)
        except Unreachable:
            found = held("ListChannels", request)
        finally:
            caller.close()
    except TurnkeeperError:
        return []
    return sorted(channel.name for channel in found.channels if channel.name.startswith(incomplete))
