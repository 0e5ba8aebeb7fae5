"""Download, cleaning, stages, grids and tables of whole tasks."""
