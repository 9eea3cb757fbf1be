//! Why a reconciliation failed, what that is called in a condition, and when to try again.
