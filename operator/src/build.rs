//! From what is valid to objects: pure, cannot fail.
