//! The project's one front door.

fn main() {}
