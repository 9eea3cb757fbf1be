//! What the allocator keeps for itself.

/// glibc raises its thresholds to the largest block that was ever freed, and then keeps what an apply has used: 10 MB for a
/// thousand ports. Setting one of them to its initial value stops that (mallopt(3), `M_MMAP_THRESHOLD`). To be called before
/// there are other threads.
pub fn keep_little() {
    #[cfg(target_env = "gnu")]
    // SAFETY: changes what is allocated from now on, and nothing that is in use.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, 128 * 1024);
    }
}

/// Returns what building a table has taken: the allocator would keep it until the next one.
pub(crate) fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: gives free memory to the kernel and changes nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}
