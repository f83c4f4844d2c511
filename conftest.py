"""Wiring only: the plugin does everything."""
pytest_plugins = ('ci.plugin',)
