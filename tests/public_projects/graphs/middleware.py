"""An agent of LangChain with three of its middlewares: it asks before mails, sums up long threads, and tries tools again."""

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware, SummarizationMiddleware, ToolRetryMiddleware
from tools import search, send_mail

graph = create_agent(
    "openai:gpt-4o",
    [search, send_mail],
    middleware=[
        HumanInTheLoopMiddleware({"send_mail": True}),
        SummarizationMiddleware("openai:gpt-4o-mini", trigger=("messages", 6), keep=("messages", 4)),
        ToolRetryMiddleware(max_retries=2, initial_delay=0.0),
    ],
)
