"""The same work by us and by others, in turns on one machine. `run` drives; every `*_worker` is one contestant."""
