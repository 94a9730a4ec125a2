"""The private interfaces of Triton and torch, version by version: no other package of this program imports one."""
