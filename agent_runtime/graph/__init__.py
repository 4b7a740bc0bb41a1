"""The code that runs graphs. Only this package and `agent_runtime.tools` import LangGraph and LangChain.

From the top: `agent` is our own agent with its subagents, and `foreign` loads authors' graphs. `engine` runs both.
`models` calls models, `checkpointer` stores threads, and `guard` judges tool calls. `offline` is the model without a
network. All packages share `context`. None of these packages writes turns; `agent_runtime.turns` writes them.
"""
