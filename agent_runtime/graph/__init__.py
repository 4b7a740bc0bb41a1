"""The code that runs graphs. Only this package and `agent_runtime.tools` import LangGraph and LangChain.

From the top: `agent` is our own agent with its subagents, and `foreign` loads authors' graphs. `engine` runs both.
`models` calls models, `checkpointer` stores threads, and `guard` judges tool calls. `offline` is the model without a
network; all packages share `context`. None of them writes turns, which `agent_runtime.turns` does.
"""
