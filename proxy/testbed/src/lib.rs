//! Network namespaces, devices and real traffic for tests, the demo and benchmarks.
