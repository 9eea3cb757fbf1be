//! Server-side apply in the order of dependencies; what is no longer wanted is deleted by its labels.
//!
//! Nothing is written that would change nothing: what is there is compared first ([`needs_write`]), so a resync of an idle
//! cluster makes no write at all.

mod difference;
mod object;

pub use self::{
    difference::needs_write,
    object::{Applier, FIELD_MANAGER, mark_object, set_finalizer},
};
