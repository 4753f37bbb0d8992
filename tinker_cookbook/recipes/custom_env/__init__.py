"""An environment of your own, in sixty lines."""
