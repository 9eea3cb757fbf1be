//! Conditions with stable transition times.
