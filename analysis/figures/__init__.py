"""The figures: one file a family, each of which draws a pandas frame; catalogue.py lists them all."""
