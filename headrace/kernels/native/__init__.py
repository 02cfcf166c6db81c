"""The kernels in C++: sources, and the library that they were built into. The calls stand beside their references."""
