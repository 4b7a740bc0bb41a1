"""All that runs graphs: LangGraph and LangChain are imported here and in `agent_runtime.tools` only.

From the top: `agent` (our own agent and its subagents) and `foreign` (graphs that authors bring); `engine` runs either;
`models` calls models, `checkpointer` keeps threads, `guard` judges tool calls; `offline` is the model without a
network; `context` is shared by all. None of them writes turns: that is for `agent_runtime.turns`.
"""
