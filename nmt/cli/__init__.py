"""The commands, one thin module per command."""
