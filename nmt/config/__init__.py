"""Configuration: YAML files to checked, frozen dataclasses."""
