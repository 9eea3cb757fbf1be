//! The proxy process: configuration -> rule table -> data path -> report.

pub mod conntrack;
pub mod data_path;
