//! Every label, selector, annotation key and finalizer of the contract, once.
