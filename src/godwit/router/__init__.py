"""The router: the OpenAI API in front, each request's journal behind it."""
