"""What a script launches: it is run, with a GPU or without, and its launches are kept."""
