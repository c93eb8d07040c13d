"""A model, its data and its training, as an app for Flower."""
