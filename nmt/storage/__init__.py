"""How everything that lasts is written: whole, synced, verified; nothing here knows of models."""
