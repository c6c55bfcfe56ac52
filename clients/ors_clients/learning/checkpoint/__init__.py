"""A checkpoint of the Hugging Face kind, sampled with vLLM in the process that trains."""
