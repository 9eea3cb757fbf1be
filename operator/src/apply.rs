//! Server-side apply in the order of dependencies; what is no longer wanted is deleted by its labels.
