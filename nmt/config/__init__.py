"""YAML files to checked, frozen dataclasses; the table of attention kinds."""
