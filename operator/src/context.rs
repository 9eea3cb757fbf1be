//! What every reconciliation may use.
