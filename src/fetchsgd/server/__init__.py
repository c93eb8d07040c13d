"""The server's side of a round: Algorithm 1's loop and what it keeps."""
