//! Names that Kubernetes accepts, and how derived names are made.
