"""A deep agent with one subagent, which searches; it writes files into its state and asks before it sends mail."""

from deepagents import create_deep_agent
from tools import search, send_mail

researcher = {
    "name": "researcher",
    "description": "Looks things up.",
    "system_prompt": "You look things up.",
    "tools": [search],
}
graph = create_deep_agent(
    model="anthropic:claude-sonnet-4-5-20250929",
    tools=[send_mail],
    subagents=[researcher],
    interrupt_on={"send_mail": True},
)
