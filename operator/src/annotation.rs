//! Annotations of Services and Ingresses -> a typed request, all errors at once.
