"""`godwit demo figure3`: the two-server example of ServerlessLLM (OSDI 2024, figure 3) on a real cluster."""
