"""What a person or a program reads of a traced kernel: text, Chrome trace, one HTML page."""
