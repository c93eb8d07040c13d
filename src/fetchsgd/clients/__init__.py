"""A client's work: batches, gradients, many clients at once."""
