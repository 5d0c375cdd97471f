"""One file an operation, each with one ``OPERATION``; whatever lies here is found and run."""
