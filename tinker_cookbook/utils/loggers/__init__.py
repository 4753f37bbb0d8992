"""Where metrics go: one file per kind of logger. Users import them from `tinker_cookbook.utils.ml_log`."""
