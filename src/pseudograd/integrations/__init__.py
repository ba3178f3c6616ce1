"""pseudograd in the tools that people run. Each file is imported on demand, and needs the tool that it is called as."""
