//! One controller a kind.
