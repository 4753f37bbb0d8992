"""The shorter answer wins: the smallest example of learning from comparisons."""
