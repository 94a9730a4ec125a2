"""One kernel as static rules read it: TTGIR with locations, machine code, resources, source lines, launch."""
