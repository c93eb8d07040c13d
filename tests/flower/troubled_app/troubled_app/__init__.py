"""The Flower app of the tests."""
