"""LangChain tools for turns, built on the layers below; each tool has a scope and an effect."""
