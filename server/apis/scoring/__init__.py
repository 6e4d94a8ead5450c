"""Scores and reranking, in the forms of vLLM, Jina and Cohere."""
