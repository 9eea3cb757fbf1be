//! The user-space data path.
