"""What follows from a kernel's code and its launch, as several rules ask for it."""
