"""A Flower app that trains with FetchSGD; everything is in fetchsgd.flower."""
