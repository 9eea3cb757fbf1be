//! The proxy process: configuration -> rule table -> data path -> report.

pub mod data_path;
