"""The tools that turns are offered: LangChain tools over the layers below, each with its scope and effect."""
