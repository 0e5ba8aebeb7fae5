"""Recipes: from a blank machine to the results of a paper, stage by stage."""
